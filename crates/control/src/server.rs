//! HTTP and JSON over the control socket, on a thread of its own.
//!
//! * A handler turns a request into a [`Call`], sends it to the daemon's reactor and waits for the
//!   answer. A client that goes away takes nothing back.
//! * Whatever arrives is answered from the error table; nothing here can panic on it.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::Listener;
use forebay_device::post::Sender;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::api;
use crate::call::{Call, Reply, Result, reply};
use crate::error::{ApiError, Code};
use crate::name::{Name, VolumeName};
use crate::nearest::{nearest_expected, question};
use crate::socket::ControlSocket;

/// Longest body of a request, in bytes: eight paths of 4 KiB fit, and nothing asked is longer. A
/// longer one is refused.
pub const BODY_BYTES_MAX: usize = 64 << 10;

/// Changes on their way to the reactor at a time; more wait here. The daemon makes one at a time.
const CHANGES_MAX: usize = 64;

/// Connections at a time; more wait in the kernel's backlog. Each may hold a body of 64 KiB, and a
/// descriptor that the data path may need.
const CONNECTIONS_MAX: usize = 128;

/// How long a client may take to send a request's head, also the next one on its connection, and then the body: local
/// programs take milliseconds. Without it as many as [`CONNECTIONS_MAX`] that say nothing would keep all others out.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);

/// How long requests under way are waited for at the end.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// What every handler needs.
#[derive(Clone)]
struct Desk {
    calls: Sender<Call>,
    changes: Arc<Semaphore>,
}

impl Desk {
    /// Sends a call that changes something, and waits for its answer.
    async fn change<T: Serialize>(&self, call: impl FnOnce(Reply<T>) -> Call) -> Response {
        let _place = self.changes.acquire().await;
        self.ask(call).await
    }

    /// Sends a call that only looks, and is answered at once however many changes wait.
    async fn ask<T: Serialize>(&self, call: impl FnOnce(Reply<T>) -> Call) -> Response {
        let (reply, answer) = reply();
        self.calls.send(call(reply));
        respond(answer.await)
    }
}

fn json(status: u16, body: &impl Serialize) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let Ok(body) = serde_json::to_vec(body) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn respond<T: Serialize>(answer: Result<T>) -> Response {
    match answer {
        Ok(body) => json(200, &body),
        Err(error) => error.into_response(),
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        json(self.code.status(), &self)
    }
}

/// A JSON body, whatever its content type is said to be.
struct Body<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> std::result::Result<Self, ApiError> {
        let bytes = body_of(request, state).await?;
        // What has fields could also be written as a list of their values, which nobody should guess.
        if bytes.trim_ascii_start().starts_with(b"[") {
            let what = "the body cannot be used: it is a list";
            return Err(ApiError::new(Code::BadRequest, what)
                .hint("send an object; docs/user/reference.md lists the fields"));
        }
        serde_json::from_slice(&bytes).map(Body).map_err(|error| {
            let why = error.to_string();
            ApiError::new(Code::BadRequest, format!("the body cannot be used: {why}"))
                .hint(body_hint(&why))
        })
    }
}

/// No body: empty, or one without fields. Whoever asks for a `dry_run` where there is none must not get the real thing.
struct Bare;

impl<S: Send + Sync> FromRequest<S> for Bare {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> std::result::Result<Self, ApiError> {
        let bytes = body_of(request, state).await?;
        let no_fields = || {
            serde_json::from_slice::<serde_json::Map<_, _>>(&bytes).is_ok_and(|it| it.is_empty())
        };
        match bytes.trim_ascii() {
            b"" | b"null" => Ok(Bare),
            _ if no_fields() => Ok(Bare),
            _ => Err(ApiError::new(Code::BadRequest, "this request takes no body")
                .hint("send none; to hear what a change would do, ask `POST /api/v1/plan`")),
        }
    }
}

/// The bytes of a request's body.
async fn body_of<S: Send + Sync>(
    request: Request,
    state: &S,
) -> std::result::Result<Bytes, ApiError> {
    let late = |_| ApiError::new(Code::BadRequest, "the body did not arrive in time");
    let arrived = tokio::time::timeout(REQUEST_TIME_MAX, Bytes::from_request(request, state));
    arrived.await.map_err(late)?.map_err(|rejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            let what = format!("the body is longer than {BODY_BYTES_MAX} B");
            return ApiError::new(Code::TooLarge, what).hint("send less at a time");
        }
        ApiError::new(Code::BadRequest, "the body did not arrive whole")
    })
}

/// What to do about a body that does not fit: the nearest one of the fields or words that are expected in place of
/// one that nobody knows.
fn body_hint(why: &str) -> String {
    let nearest = nearest_expected(why).map(|nearest| question(format_args!("`{nearest}`")));
    format!("{}docs/user/reference.md lists the fields", nearest.unwrap_or_default())
}

/// Parts of the address.
struct At<T>(T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for At<T> {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &S,
    ) -> std::result::Result<Self, ApiError> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(value)| At(value)).map_err(|error| {
            ApiError::new(Code::BadRequest, format!("the address cannot be used: {error}"))
        })
    }
}

/// What stands behind the question mark.
struct Asked<T>(T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &S,
    ) -> std::result::Result<Self, ApiError> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(value)| Asked(value)).map_err(|error| {
            ApiError::new(Code::BadRequest, format!("the query cannot be used: {error}"))
        })
    }
}

type D = State<Desk>;

async fn status(State(desk): D) -> Response {
    desk.ask(Call::Status).await
}

async fn stats(State(desk): D) -> Response {
    desk.ask(Call::Stats).await
}

async fn events(State(desk): D, Asked(query): Asked<api::EventsQuery>) -> Response {
    desk.ask(|reply| Call::Events(query, reply)).await
}

async fn pools(State(desk): D) -> Response {
    desk.ask(Call::Pools).await
}

async fn pool(State(desk): D, At(name): At<Name>) -> Response {
    desk.ask(|reply| Call::Pool(name, reply)).await
}

async fn create_pool(State(desk): D, Body(body): Body<api::CreatePool>) -> Response {
    desk.change(|reply| Call::CreatePool(body, reply)).await
}

async fn set_pool(State(desk): D, At(name): At<Name>, Body(body): Body<api::SetPool>) -> Response {
    desk.change(|reply| Call::SetPool(name, body, reply)).await
}

async fn import_pool(State(desk): D, Body(body): Body<api::ImportPool>) -> Response {
    desk.change(|reply| Call::ImportPool(body, reply)).await
}

async fn importable(State(desk): D) -> Response {
    desk.change(Call::Importable).await
}

async fn export_pool(State(desk): D, At(name): At<Name>, _: Bare) -> Response {
    desk.change(|reply| Call::ExportPool(name, reply)).await
}

async fn bypass_pool(
    State(desk): D,
    At(name): At<Name>,
    Body(body): Body<api::Confirm>,
) -> Response {
    desk.change(|reply| Call::BypassPool(name, body, reply)).await
}

async fn destroy_pool(
    State(desk): D,
    At(name): At<Name>,
    Body(body): Body<api::Confirm>,
) -> Response {
    desk.change(|reply| Call::DestroyPool(name, body, reply)).await
}

async fn add_device(
    State(desk): D,
    At(name): At<Name>,
    Body(body): Body<api::AddDevice>,
) -> Response {
    desk.change(|reply| Call::AddDevice(name, body, reply)).await
}

async fn grow_device(
    State(desk): D,
    At(name): At<Name>,
    Body(body): Body<api::GrowDevice>,
) -> Response {
    desk.change(|reply| Call::GrowDevice(name, body, reply)).await
}

async fn add_spare(
    State(desk): D,
    At(name): At<Name>,
    Body(body): Body<api::AddSpare>,
) -> Response {
    desk.change(|reply| Call::AddSpare(name, body, reply)).await
}

async fn remove_device(
    State(desk): D,
    At(name): At<Name>,
    Body(body): Body<api::RemoveDevice>,
) -> Response {
    desk.change(|reply| Call::RemoveDevice(name, body, reply)).await
}

async fn replace_device(
    State(desk): D,
    At(name): At<Name>,
    Body(body): Body<api::ReplaceDevice>,
) -> Response {
    desk.change(|reply| Call::ReplaceDevice(name, body, reply)).await
}

async fn can_i_pull(
    State(desk): D,
    At(name): At<Name>,
    Body(body): Body<api::CanIPull>,
) -> Response {
    desk.ask(|reply| Call::CanIPull(name, body, reply)).await
}

async fn start_scrub(State(desk): D, At(name): At<Name>, _: Bare) -> Response {
    desk.change(|reply| Call::StartScrub(name, reply)).await
}

async fn stop_scrub(State(desk): D, At(name): At<Name>, _: Bare) -> Response {
    desk.change(|reply| Call::StopScrub(name, reply)).await
}

async fn advisors(State(desk): D) -> Response {
    desk.ask(Call::Advisors).await
}

async fn advisor(State(desk): D, At((pool, volume)): At<(Name, Name)>) -> Response {
    desk.ask(|reply| Call::Advisor(VolumeName { pool, volume }, reply)).await
}

async fn start_advisor(
    State(desk): D,
    At((pool, volume)): At<(Name, Name)>,
    Body(body): Body<api::StartAdvisor>,
) -> Response {
    let name = VolumeName { pool, volume };
    desk.change(|reply| Call::StartAdvisor(name, body, reply)).await
}

async fn stop_advisor(State(desk): D, At((pool, volume)): At<(Name, Name)>, _: Bare) -> Response {
    desk.change(|reply| Call::StopAdvisor(VolumeName { pool, volume }, reply)).await
}

async fn plan(State(desk): D, Body(body): Body<api::Change>) -> Response {
    desk.ask(|reply| Call::Plan(body, reply)).await
}

async fn volumes(State(desk): D) -> Response {
    desk.ask(Call::Volumes).await
}

async fn volume(State(desk): D, At((pool, volume)): At<(Name, Name)>) -> Response {
    desk.ask(|reply| Call::Volume(VolumeName { pool, volume }, reply)).await
}

async fn add_volume(
    State(desk): D,
    At(pool): At<Name>,
    Body(body): Body<api::AddVolume>,
) -> Response {
    desk.change(|reply| Call::AddVolume(pool, body, reply)).await
}

async fn set_volume(
    State(desk): D,
    At((pool, volume)): At<(Name, Name)>,
    Body(body): Body<api::SetVolume>,
) -> Response {
    desk.change(|reply| Call::SetVolume(VolumeName { pool, volume }, body, reply)).await
}

async fn set_volume_settings(
    State(desk): D,
    At((pool, volume)): At<(Name, Name)>,
    Body(body): Body<api::SetVolumeSettings>,
) -> Response {
    let name = VolumeName { pool, volume };
    desk.change(|reply| Call::SetVolumeSettings(name, body, reply)).await
}

async fn flush_volume(State(desk): D, At((pool, volume)): At<(Name, Name)>, _: Bare) -> Response {
    desk.change(|reply| Call::FlushVolume(VolumeName { pool, volume }, reply)).await
}

async fn grow_volume(State(desk): D, At((pool, volume)): At<(Name, Name)>, _: Bare) -> Response {
    desk.change(|reply| Call::GrowVolume(VolumeName { pool, volume }, reply)).await
}

async fn accept_lost(
    State(desk): D,
    At((pool, volume)): At<(Name, Name)>,
    Body(body): Body<api::AcceptLost>,
) -> Response {
    let name = VolumeName { pool, volume };
    desk.change(|reply| Call::AcceptLost(name, body, reply)).await
}

async fn accept_origin(
    State(desk): D,
    At((pool, volume)): At<(Name, Name)>,
    Body(body): Body<api::AcceptOrigin>,
) -> Response {
    let name = VolumeName { pool, volume };
    desk.change(|reply| Call::AcceptOrigin(name, body, reply)).await
}

async fn remove_volume(State(desk): D, At((pool, volume)): At<(Name, Name)>, _: Bare) -> Response {
    desk.change(|reply| Call::RemoveVolume(VolumeName { pool, volume }, reply)).await
}

async fn exports(State(desk): D) -> Response {
    desk.ask(Call::Exports).await
}

async fn add_export(State(desk): D, Body(body): Body<api::AddExport>) -> Response {
    desk.change(|reply| Call::AddExport(body, reply)).await
}

async fn remove_export(State(desk): D, At((pool, volume)): At<(Name, Name)>, _: Bare) -> Response {
    desk.change(|reply| Call::RemoveExport(VolumeName { pool, volume }, reply)).await
}

async fn jobs(State(desk): D) -> Response {
    desk.ask(Call::Jobs).await
}

async fn job(State(desk): D, At(number): At<u64>) -> Response {
    desk.ask(|reply| Call::Job(number, reply)).await
}

async fn cancel_job(State(desk): D, At(number): At<u64>, _: Bare) -> Response {
    desk.ask(|reply| Call::CancelJob(number, reply)).await
}

async fn stop(State(desk): D, Body(body): Body<api::Stop>) -> Response {
    desk.change(|reply| Call::Stop(body, reply)).await
}

/// Refuses what stands behind a question mark where nothing is looked for: a `?dry_run=true` must not get the real thing.
async fn without_query(request: Request, next: Next) -> Response {
    match request.uri().query() {
        None | Some("") => next.run(request).await,
        Some(_) => ApiError::new(Code::BadRequest, "this request takes nothing behind its address")
            .hint("leave out what stands behind the question mark; docs/user/reference.md lists the fields of bodies")
            .into_response(),
    }
}

async fn nowhere(request: Request) -> ApiError {
    ApiError::new(Code::NotFound, format!("there is no {}", request.uri().path()))
        .hint("addresses begin with /api/v1; docs/user/reference.md lists them")
}

async fn wrong_method(request: Request) -> ApiError {
    let what = format!("{} cannot be asked of {}", request.method(), request.uri().path());
    ApiError::new(Code::BadMethod, what).hint("docs/user/reference.md lists what can")
}

/// All addresses.
pub fn router(calls: Sender<Call>) -> Router {
    let desk = Desk { calls, changes: Arc::new(Semaphore::new(CHANGES_MAX)) };
    let volume_at = "/pools/{pool}/volumes/{volume}";
    let api = Router::new()
        .route("/status", get(status))
        .route("/stats", get(stats))
        .route("/pools", get(pools).post(create_pool))
        .route("/import", get(importable).post(import_pool))
        .route("/pools/{pool}", get(pool).patch(set_pool))
        .route("/pools/{pool}/export", post(export_pool))
        .route("/pools/{pool}/bypass", post(bypass_pool))
        .route("/pools/{pool}/destroy", post(destroy_pool))
        .route("/pools/{pool}/devices/add", post(add_device))
        .route("/pools/{pool}/devices/grow", post(grow_device))
        .route("/pools/{pool}/devices/spare", post(add_spare))
        .route("/pools/{pool}/devices/remove", post(remove_device))
        .route("/pools/{pool}/devices/replace", post(replace_device))
        .route("/pools/{pool}/devices/can-i-pull", post(can_i_pull))
        .route("/pools/{pool}/scrub", post(start_scrub).delete(stop_scrub))
        .route("/plan", post(plan))
        .route("/volumes", get(volumes))
        .route("/pools/{pool}/volumes", post(add_volume))
        .route(volume_at, get(volume).patch(set_volume).delete(remove_volume))
        .route(&format!("{volume_at}/settings"), axum::routing::patch(set_volume_settings))
        .route(&format!("{volume_at}/flush"), post(flush_volume))
        .route(&format!("{volume_at}/grow"), post(grow_volume))
        .route(&format!("{volume_at}/accept-lost"), post(accept_lost))
        .route(&format!("{volume_at}/accept-origin"), post(accept_origin))
        .route(
            &format!("{volume_at}/advisor"),
            get(advisor).post(start_advisor).delete(stop_advisor),
        )
        .route("/advisors", get(advisors))
        .route("/exports", get(exports).post(add_export))
        .route("/exports/{pool}/{volume}", axum::routing::delete(remove_export))
        .route("/stop", post(stop))
        .route("/jobs", get(jobs))
        .route("/jobs/{number}", get(job).delete(cancel_job))
        .layer(middleware::from_fn(without_query))
        .route("/events", get(events));
    Router::new()
        .nest("/api/v1", api)
        .fallback(nowhere)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(desk)
}

/// The socket's connections, of which there are at most [`CONNECTIONS_MAX`].
struct Door {
    listener: UnixListener,
    places: Arc<Semaphore>,
}

/// A connection and its place.
struct Guest {
    stream: UnixStream,
    _place: Option<OwnedSemaphorePermit>,
}

impl Door {
    fn of(listener: UnixListener) -> Door {
        Door { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }

    async fn accept(&mut self) -> Guest {
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        // Waits by itself where descriptors are short.
        let (stream, _) = Listener::accept(&mut self.listener).await;
        Guest { stream, _place: place }
    }

    /// Serves whoever comes, until it `ends` and all that was asked is answered. Requests have so much time to arrive.
    async fn serve(mut self, router: Router, time: Duration, ends: impl Future<Output = ()>) {
        let mut http = http1::Builder::new();
        // Who has said all is still told what came of it.
        http.half_close(true);
        http.timer(TokioTimer::new()).header_read_timeout(time);
        let (guests, mut ends) = (GracefulShutdown::new(), pin!(ends));
        loop {
            let guest = tokio::select! {
                guest = self.accept() => guest,
                () = &mut ends => break,
            };
            let service = TowerToHyperService::new(router.clone());
            let served = guests.watch(http.serve_connection(TokioIo::new(guest), service));
            // What ends a connection is its client's business.
            tokio::spawn(async move { drop(served.await) });
        }
        guests.shutdown().await;
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buf)
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// The thread that serves the control socket.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Serves `socket`; what is asked goes to `calls`.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(socket: ControlSocket, calls: Sender<Call>) -> io::Result<Server> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let listener = {
            let _inside = runtime.enter();
            UnixListener::from_std(socket.listener.try_clone()?)?
        };
        let serve = async move {
            let (told, ending) = oneshot::channel::<()>();
            let ends = async move {
                let _ = stopped.await;
                drop(told);
            };
            let serving = Door::of(listener).serve(router(calls), REQUEST_TIME_MAX, ends);
            let limit = async move {
                let _ = ending.await;
                tokio::time::sleep(DRAIN_TIME_MAX).await;
            };
            tokio::select! {
                () = serving => {}
                () = limit => {}
            }
            drop(socket);
        };
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            runtime.block_on(serve);
        })?;
        Ok(Server { stop: Some(stop), thread })
    }

    /// Takes no more requests. Those under way are still to be answered: go on receiving calls
    /// until there are none, then [`Server::join`].
    pub fn stop(&mut self) {
        self.stop = None;
    }

    /// Waits until the thread has ended. Blocks: after the last call has been received.
    pub fn join(self) {
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream as Stream;

    use super::*;

    #[test]
    fn a_field_or_word_that_nobody_knows_is_told_the_nearest_one() {
        let hint = |body: &str| {
            let error = serde_json::from_str::<api::SetPool>(body).unwrap_err();
            body_hint(&error.to_string())
        };
        assert!(hint("{\"ram_byte\": 1}").starts_with("did you mean `ram_bytes`?"));
        assert!(hint("{\"dry\": true}").starts_with("did you mean `dry_run`?"));
        assert!(hint("{\"verify\": \"raeds\"}").starts_with("did you mean `reads`?"));
        assert!(hint("{\"colour\": \"red\"}").starts_with("docs/"), "nothing is like it");
        assert!(hint("{\"ram_bytes\": \"x\"}").starts_with("docs/"));
        assert!(hint("[").starts_with("docs/"));
        let long = "A".repeat(30_000);
        let names_ones_own = format!("{{\"{long}`ram_bytes`{long}\": 1}}");
        assert!(hint(&names_ones_own).starts_with("docs/"), "nothing long is compared");
    }

    /// All places are taken by clients that say nothing, or half of it.
    #[test]
    fn clients_that_say_nothing_give_their_places_back() {
        let path = std::env::temp_dir().join(format!("forebay-silent-{}", std::process::id()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (calls, _answers) = forebay_device::post::post();
        let (end, ends) = oneshot::channel::<()>();
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(&path).unwrap()
        };
        let serve = async move {
            let time = Duration::from_millis(200);
            Door::of(listener).serve(router(calls), time, async { drop(ends.await) }).await;
        };
        let thread = std::thread::spawn(move || runtime.block_on(serve));
        let silent = (0..CONNECTIONS_MAX).map(|number| {
            let mut stream = Stream::connect(&path).unwrap();
            let half = &b"GET /api/v1/status HTTP/1.1\r\n"[..number % 2 * 29];
            stream.write_all(half).unwrap();
            stream
        });
        let silent: Vec<_> = silent.collect();
        let mut asks = Stream::connect(&path).unwrap();
        asks.write_all(b"GET /none HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        asks.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 404");
        drop((end, asks, silent));
        thread.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
