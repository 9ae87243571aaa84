//! Where an export of another server is, as people write it: the NBD project's `doc/uri.md`.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::nbd::limits::NAME_BYTES_MAX;

/// The port that servers have unless somebody says otherwise.
const PORT_USUAL: u16 = 10809;

/// Who serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A name or an address, and a port.
    Tcp(String, u16),
    /// A socket.
    Unix(PathBuf),
}

/// An export of a server. Two that are written differently and mean the same are equal, unless that
/// takes asking somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Who serves it.
    pub host: Host,
    /// The export's name.
    pub export: String,
}

/// What is wrong with a URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceError {
    /// In words that go on after the URI.
    pub what: &'static str,
    /// What to do about it.
    pub hint: &'static str,
}

const FORMS: &str =
    "write it like nbd://host:port/export or nbd+unix:///export?socket=/absolute/path";

fn wrong(what: &'static str) -> PlaceError {
    PlaceError { what, hint: FORMS }
}

impl Place {
    /// Whether a text is meant as a URI, and not as a path.
    pub fn is_meant(text: &str) -> bool {
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        !scheme.is_empty()
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    }
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Place, PlaceError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("is no URI"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let host = match scheme.to_ascii_lowercase().as_str() {
            "nbd" if query.is_empty() => tcp(authority)?,
            "nbd" => return Err(wrong("has a query, which is not known here")),
            "nbd+unix" if authority.is_empty() => unix(query)?,
            "nbd+unix" => return Err(wrong("names a host and a Unix socket")),
            "nbds" | "nbds+unix" => {
                return Err(PlaceError {
                    what: "asks for TLS, which is not supported to origins yet",
                    hint: "have its server on a Unix socket, or reach it through a tunnel",
                });
            }
            _ => return Err(wrong("has a scheme that no origin has")),
        };
        let export = decoded(export)?;
        if export.len() > NAME_BYTES_MAX {
            return Err(wrong("has a name that is too long for an export"));
        }
        Ok(Place { host, export })
    }
}

fn tcp(authority: &str) -> Result<Host, PlaceError> {
    let bad = || wrong("has no host, or a port that is none");
    let (name, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => {
            let address: IpAddr = address.parse().map_err(|_| bad())?;
            (address.to_string(), port.strip_prefix(':').or(port.is_empty().then_some("")))
        }
        None => {
            let (name, port) = authority.split_once(':').unwrap_or((authority, ""));
            (name.to_ascii_lowercase(), Some(port))
        }
    };
    let port = match port.ok_or_else(bad)? {
        "" => PORT_USUAL,
        port => port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?,
    };
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-._:".contains(&b);
    if name.is_empty() || !name.bytes().all(is_name) {
        return Err(bad());
    }
    Ok(Host::Tcp(name, port))
}

fn unix(query: &str) -> Result<Host, PlaceError> {
    let socket = query.strip_prefix("socket=").filter(|socket| !socket.contains('&'));
    let path = PathBuf::from(decoded(socket.ok_or_else(|| wrong("needs ?socket=PATH alone"))?)?);
    match path.is_absolute() {
        true => Ok(Host::Unix(path)),
        false => Err(wrong("has a socket whose path is not absolute")),
    }
}

fn decoded(text: &str) -> Result<String, PlaceError> {
    let bad = || wrong("has a % that means nothing");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
                let (high, low) = (digit().ok_or_else(bad)?, digit().ok_or_else(bad)?);
                (high * 16 + low) as u8
            }
            byte => byte,
        });
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(bad()),
    }
}

fn encoded(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for byte in text.bytes() {
        match byte {
            b if b.is_ascii_alphanumeric() || b"-._~/:@+,=".contains(&b) => {
                write!(f, "{}", char::from(b))?;
            }
            b => write!(f, "%{b:02X}")?,
        }
    }
    Ok(())
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Tcp(name, port) if name.contains(':') => write!(f, "nbd://[{name}]:{port}/")?,
            Host::Tcp(name, port) => write!(f, "nbd://{name}:{port}/")?,
            Host::Unix(_) => f.write_str("nbd+unix:///")?,
        }
        encoded(f, &self.export)?;
        if let Host::Unix(path) = &self.host {
            f.write_str("?socket=")?;
            encoded(f, &path.to_string_lossy())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_export_become_one() {
        let table = [
            ("nbd://Host", "nbd://host:10809/"),
            ("nbd://host:10809/", "nbd://host:10809/"),
            ("NBD://10.0.0.1:99/a%20b/c", "nbd://10.0.0.1:99/a%20b/c"),
            ("nbd://[::1]/x", "nbd://[::1]:10809/x"),
            ("nbd://[0:0::1]:7", "nbd://[::1]:7/"),
            ("nbd+unix:///?socket=/run/a", "nbd+unix:///?socket=/run/a"),
            ("nbd+unix:///x?socket=/a%3fb", "nbd+unix:///x?socket=/a%3Fb"),
            ("nbd+unix:///%C3%A4?socket=/a", "nbd+unix:///%C3%A4?socket=/a"),
        ];
        for (text, expected) in table {
            let place: Place = text.parse().unwrap_or_else(|e: PlaceError| panic!("{text}: {e:?}"));
            assert_eq!(place.to_string(), expected, "{text}");
            assert_eq!(place.to_string().parse(), Ok(place), "{text}");
            assert!(Place::is_meant(text));
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for text in [
            "nbd://",
            "nbd:///x",
            "nbd://h:0/x",
            "nbd://h:x/",
            "nbd://h:70000/",
            "nbd://[::1/x",
            "nbd://[::1]9/x",
            "nbd://a b/x",
            "nbd://u@h/x",
            "nbd://h/x?a=b",
            "nbd://h/%2",
            "nbd://h/%00",
            "nbd://h/%ff",
            "nbd+unix:///x",
            "nbd+unix:///x?socket=a",
            "nbd+unix://h/x?socket=/a",
            "nbd+unix:///x?socket=/a&b=c",
            "iscsi://h/x",
            "http://h/x",
        ] {
            let error = text.parse::<Place>().expect_err(text);
            assert_eq!(error.hint, FORMS, "{text}");
        }
        for text in ["nbds://h/x", "nbds+unix:///?socket=/x"] {
            assert!(text.parse::<Place>().expect_err(text).what.contains("TLS"));
        }
        for text in ["/dev/sda", "disk", "a/b://c", "://x", "nbd:/x"] {
            assert!(!Place::is_meant(text), "{text}");
        }
    }
}
