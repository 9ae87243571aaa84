//! What the API can be asked, read from where it is defined.

use std::collections::BTreeSet;
use std::path::Path;

/// Methods and addresses of the router, as it writes them.
pub fn routes() -> BTreeSet<(&'static str, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../control/src/server.rs");
    let server = std::fs::read_to_string(path).unwrap();
    let volume_at = "/pools/{pool}/volumes/{volume}";
    assert!(server.contains(&format!("let volume_at = \"{volume_at}\";")));
    let mut routes = BTreeSet::new();
    for route in server.split(".route(").skip(1) {
        let (first, rest) = route.split_once(',').unwrap();
        let address = match first.split('"').nth(1) {
            Some(address) => address.replace("{volume_at}", volume_at),
            None => volume_at.to_owned(),
        };
        // Up to the end of the definition: what comes behind the last one names no method.
        let methods = rest.split(';').next().unwrap();
        for method in ["get", "post", "put", "patch", "delete"] {
            let is_named = methods.match_indices(&format!("{method}(")).any(|(at, _)| {
                !methods[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            });
            if is_named {
                let upper = ["GET", "POST", "PUT", "PATCH", "DELETE"];
                let upper = upper.into_iter().find(|it| it.eq_ignore_ascii_case(method)).unwrap();
                routes.insert((upper, format!("/api/v1{address}")));
            }
        }
    }
    assert!(routes.len() > 35, "{routes:?}");
    routes
}

/// What can be planned, by the words that the API expects.
pub fn plans() -> BTreeSet<String> {
    let error = serde_json::from_str::<forebay_control::api::Change>("{\"none\": 1}").unwrap_err();
    let error = error.to_string();
    let expected = error.split('`').skip(3).step_by(2);
    expected.map(str::to_owned).collect()
}

/// Whether a request goes to this address of the router.
pub fn fits(address: &str, path: &str) -> bool {
    let path = path.split('?').next().unwrap();
    let parts: Vec<&str> = path.split('/').collect();
    let wanted: Vec<&str> = address.split('/').collect();
    parts.len() == wanted.len()
        && parts.iter().zip(wanted).all(|(part, want)| want.starts_with('{') || *part == want)
}

/// What of the router none of these requests is sent to.
pub fn left_out<'a>(
    asked: impl Iterator<Item = (&'a str, &'a str)> + Clone,
) -> Vec<(&'static str, String)> {
    let is_asked = |(method, address): &(&str, String)| {
        asked.clone().any(|(with, path)| with == *method && fits(address, path))
    };
    routes().into_iter().filter(|route| !is_asked(route)).collect()
}
