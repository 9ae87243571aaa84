//! What a person has to agree to before it is done to a pool.

use std::path::PathBuf;

use forebay_control::api::{Change, Confirm, ImportPool, Job, Member, One, Plan, Pool, PoolState};
use forebay_control::name::Name;

use super::pool::{is_identity, print_pool};
use super::{Daemon, confirm};
use crate::Result;
use crate::text::{plural, tell};

/// Destroys a pool.
pub(super) fn destroy(name: &Name, yes: bool, daemon: &Daemon<'_>) -> Result<()> {
    // There is something to confirm only if there is such a pool.
    let pool: One<Pool> = daemon.get(&format!("/api/v1/pools/{name}"))?;
    // Where nobody can tell what would be erased, it is what the pool has.
    let change = Change::DestroyPool(name.clone());
    let plan = daemon.post::<Plan>("/api/v1/plan", &change).ok();
    let erased = plan.map_or_else(Vec::new, |plan| plan.erased);
    let absent = absent(&pool.item, &erased);
    let members = plural(pool.item.members.len() - absent.len(), "cache device");
    let mut what = format!("Destroying pool \"{name}\" erases it from {members}");
    if !absent.is_empty() {
        what.push_str(&format!("; what is absent is not erased: {}", absent.join(", ")));
    }
    if !pool.item.volumes.is_empty() {
        let names = pool.item.volumes.iter().map(|volume| volume.name.to_string());
        let names = names.collect::<Vec<_>>().join(", ");
        what.push_str(&format!("; what is on the origins of {names} stays there, whole"));
    }
    confirm("the name of the pool", name.as_str(), &what, yes)?;
    let body = Confirm { confirm: name.to_string() };
    let job: One<Job> = daemon.post(&format!("/api/v1/pools/{name}/destroy"), &body)?;
    let job = daemon.follow(job)?;
    daemon.print(&job, |_| {
        tell(format_args!("pool \"{name}\" is gone; its cache devices are free"));
        if !absent.is_empty() {
            let absent = absent.join(", ");
            tell(format_args!("note: not erased, for it was absent: {absent}"));
        }
        tell("next: `forebay pool create NAME --ssd PATH`");
    });
    Ok(())
}

/// Has a pool served without its cache devices.
pub(super) fn bypass(name: &Name, yes: bool, daemon: &Daemon<'_>) -> Result<()> {
    // There is something to confirm only if it can be done.
    daemon.post::<Plan>("/api/v1/plan", &Change::BypassPool(name.clone()))?;
    let what = format!(
        "Pool \"{name}\" is served straight from its origins, and what its cache devices hold is stale from then on: no \
         other machine may have them; `forebay pool bypass {name} --dry-run` says which origins"
    );
    confirm("the name of the pool", name.as_str(), &what, yes)?;
    let body = Confirm { confirm: name.to_string() };
    let pool: One<Pool> = daemon.post(&format!("/api/v1/pools/{name}/bypass"), &body)?;
    daemon.print(&pool, |pool| print_pool(&pool.item));
    Ok(())
}

/// Has it confirmed that a pool is opened without what is missing, if it can be.
pub(super) fn loss(body: &ImportPool, daemon: &Daemon<'_>) -> Result<()> {
    let pool = &body.pool;
    daemon.post::<Plan>("/api/v1/plan", &Change::ImportPool(body.clone()))?;
    let known: Option<One<Pool>> = daemon.get(&format!("/api/v1/pools/{pool}")).ok();
    let is_bypassed = known.as_ref().is_some_and(|it| it.item.state == PoolState::Bypassed);
    let members = known.map_or(Vec::new(), |it| it.item.members);
    let has_all = !members.is_empty() && members.iter().all(|it| it.state.is_there());
    let what = match (is_bypassed, has_all) {
        (true, _) => format!(
            "Pool \"{pool}\" is opened with the cache devices that are there, which are stale: nothing clean of what they \
             hold is kept. Writes that only missing ones hold are lost"
        ),
        (false, true) => format!(
            "Pool \"{pool}\" is opened with cache devices that may be as they were at an earlier time: what was written since \
             and not destaged is lost, and older data is read instead"
        ),
        (false, false) => format!(
            "Pool \"{pool}\" is opened without the cache devices that are missing: writes that only they hold are lost, \
             and they are never taken back"
        ),
    };
    let which = if is_identity(pool) { "the identity of the pool" } else { "the name of the pool" };
    confirm(which, pool, &what, false)
}

/// The cache devices of a pool that are not there, and so are not among those that are erased: where they were last, and
/// which ones they are, for another disk may be there now.
fn absent(pool: &Pool, erased: &[PathBuf]) -> Vec<String> {
    let is_absent = |member: &&Member| {
        let is_erased = member.path.as_ref().is_some_and(|path| erased.contains(path));
        !member.state.is_there() && !is_erased
    };
    let name = |member: &Member| match &member.path {
        Some(path) => format!("{} ({})", path.display(), member.id),
        None => member.id.clone(),
    };
    pool.members.iter().filter(is_absent).map(name).collect()
}
