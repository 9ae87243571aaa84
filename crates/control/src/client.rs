//! The other end of the control socket, for commands: one request at a time, blocking.

use std::io;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::ApiError;

/// Longest answer that is read, in bytes: 124 volumes in each of some pools are below it.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    /// Nobody could be asked.
    Connect(io::Error),
    /// The connection broke, or what came is no answer.
    Broken(String),
    /// The daemon said no.
    Refused(ApiError),
}

/// The Ctrl-Cs of a process, which ends by them no more.
pub struct Interrupts(Signal);

/// A connection for each request, to one socket.
pub struct Client<'a> {
    socket: &'a Path,
    runtime: tokio::runtime::Runtime,
}

impl<'a> Client<'a> {
    /// A client of the daemon at `socket`; connects when it is used.
    ///
    /// # Errors
    /// If the system gives too little.
    pub fn new(socket: &'a Path) -> io::Result<Client<'a>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Client { socket, runtime })
    }

    /// Takes Ctrl-C over.
    ///
    /// # Errors
    /// If the system gives too little.
    pub fn interrupts(&self) -> io::Result<Interrupts> {
        let _inside = self.runtime.enter();
        signal(SignalKind::interrupt()).map(Interrupts)
    }

    /// Waits for `span`, or until Ctrl-C was pressed: whether it was.
    pub fn pause(&self, span: Duration, interrupts: &mut Interrupts) -> bool {
        self.runtime.block_on(async {
            tokio::select! {
                pressed = interrupts.0.recv() => pressed.is_some(),
                () = tokio::time::sleep(span) => false,
            }
        })
    }

    /// `GET`.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.runtime.block_on(self.send(Method::GET, path, Bytes::new()))
    }

    /// `POST` with a body.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.runtime.block_on(self.send(Method::POST, path, encoded(body)))
    }

    /// `PATCH` with a body.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.runtime.block_on(self.send(Method::PATCH, path, encoded(body)))
    }

    /// `DELETE`.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.runtime.block_on(self.send(Method::DELETE, path, Bytes::new()))
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, Failure> {
        let broken = |error: &dyn std::fmt::Display| Failure::Broken(error.to_string());
        let stream = UnixStream::connect(self.socket).await.map_err(Failure::Connect)?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| broken(&error))?;
        let driver = tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "forebay")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|error| broken(&error))?;
        let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| broken(&error))?.to_bytes();
        drop(sender);
        driver.abort();
        if status.is_success() {
            serde_json::from_slice(&body).map_err(|error| broken(&error))
        } else {
            let error = serde_json::from_slice(&body).map_err(|error| broken(&error))?;
            Err(Failure::Refused(error))
        }
    }
}

fn encoded(body: &impl Serialize) -> Bytes {
    serde_json::to_vec(body).unwrap_or_default().into()
}
