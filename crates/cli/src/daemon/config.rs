//! The configuration file: paths, addresses and limits. What a pool is stands on its devices.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use forebay_device::runtime::SECOND;
use forebay_engine::format::Host;
use forebay_export::nbd::limits::{BYTES_INFLIGHT_MAX, SHARE_BYTES_INFLIGHT_MAX, share_bytes_max};
use forebay_export::nbd::{Places, Tls, TlsFiles, TlsMode};
use serde::{Deserialize, Serialize};

use super::check;
use crate::Result;
use crate::export::Clients;
use crate::failure::Failure;
use crate::health::Tools;
use crate::host::SocketAccess;
use crate::machine;
use crate::text;

/// Where the file is looked for if nobody says.
pub(crate) const CONFIG_PATH: &str = "/etc/forebay/forebay.toml";

/// The control socket if nobody says.
pub(crate) const CONTROL_PATH: &str = "/run/forebay/control.sock";

/// Most reactors: more than the largest machines have cores for one pool's clients. Each takes a
/// thread, a ring and a descriptor of each cache device.
pub(super) const REACTORS_MAX: usize = 256;

/// Longest path of a control socket, in bytes: what the system takes (unix(7)), without what is put
/// behind it while the socket is made.
pub(super) const SOCKET_PATH_BYTES_MAX: usize = 107 - ".new/s".len();

/// A field of a section.
pub(super) struct Field {
    name: &'static str,
    meaning: &'static str,
    /// What may be its value, and one that is; empty of a section.
    takes: &'static str,
    example: &'static str,
}

/// A section of the file: its fields are the keys, their comments the reference's words. Behind the type stands what
/// the key takes, for who has written something else.
macro_rules! section {
    ($(#[$about:meta])* $name:ident {
        $(
            $(#[doc = $doc:literal])+ $(#[serde($rule:meta)])?
            $key:ident: $type:ty $(=> $takes:literal, $example:literal)?,
        )*
    }) => {
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        $(#[$about])*
        pub(crate) struct $name {
            $($(#[doc = $doc])+ $(#[serde($rule)])? pub(super) $key: $type,)*
        }

        impl $name {
            const KEYS: &[Field] = &[$(Field {
                name: stringify!($key),
                meaning: concat!($($doc),+),
                takes: concat!($($takes)?),
                example: concat!($($example)?),
            },)*];
        }
    };
}

section! {
    /// See the head of the file.
    #[serde(default)]
    Config {
        /// Which pools are this daemon's, their witnesses and exports; one daemon at a time.
        state_dir: PathBuf => "a path in quotes", "\"/var/lib/forebay\"",
        /// Sockets of exports for which nobody names a place.
        run_dir: PathBuf => "a path in quotes", "\"/run/forebay\"",
        /// Threads that serve clients, at most 256; without it one per core.
        reactors: Option<NonZeroUsize> => "a whole number from 1 to 256", "4",
        /// Which machine this is, by which other hosts see who has a pool open: 32 hexadecimal digits;
        /// without it those of /etc/machine-id. For machines that were copied with that file.
        host_id: Option<String> => "32 hexadecimal digits in quotes", "\"0123456789abcdef0123456789abcdef\"",
        /// Who may ask.
        control: Control,
        /// Where cache devices are looked for.
        devices: Devices,
        /// What holds for all exports.
        exports: Exports,
        /// Certificates of the exports; without them there is no TLS.
        tls: Option<TlsKeys>,
    }
}

section! {
    /// Who may ask.
    #[serde(default)]
    Control {
        /// Who can open this socket controls the daemon; refused while another daemon answers
        /// there.
        socket: PathBuf => "a path in quotes", "\"/run/forebay/control.sock\"",
        /// Its permissions, in octal digits.
        mode: String => "octal digits in quotes", "\"0600\"",
    }
}

section! {
    /// Where cache devices are looked for.
    #[serde(default)]
    Devices {
        /// Patterns of paths.
        scan: Vec<String> => "a list of patterns of paths, each in quotes", "[\"/dev/disk/by-id/*\"]",
        /// How many seconds a start waits for a pool's missing devices before it goes on without
        /// them.
        wait_s: u64 => "a whole number of seconds", "30",
        /// After how many seconds SSDs are asked again how they are; 0 is never.
        health_s: u64 => "a whole number of seconds", "600",
        /// Whether a spare takes the place of an SSD that says that it is failing, without being told to.
        replace_failing: bool => "true or false", "true",
        /// The program that asks them, of smartmontools.
        smartctl: PathBuf => "a program in quotes", "\"/usr/sbin/smartctl\"",
        /// The program that asks those on NVMe where that one fails, of nvme-cli.
        nvme: PathBuf => "a program in quotes", "\"/usr/sbin/nvme\"",
    }
}

section! {
    /// What holds for all exports.
    #[serde(default)]
    Exports {
        /// Most clients of an export at a time, on all reactors together; who comes then is refused. Without it 128
        /// on each reactor, which is the most in any case.
        connections_max: Option<NonZeroUsize> => "a whole number of clients from 1 on", "16",
        /// Memory of one client's requests in progress, in bytes, at least 33558528: the longest request. At it nothing
        /// more is read from the client.
        inflight_bytes_max: u64 => "a whole number of bytes", "67117056",
        /// The same of all clients of one reactor together, at most 1125899906842624 (1 PiB). At it each has one
        /// request at a time; long ones wait for their turn.
        memory_bytes_max: u64 => "a whole number of bytes", "268468224",
        /// After how many seconds a client that asks for nothing loses its connection; 0 is never.
        /// A disk that is mounted may well be idle for days.
        idle_s: u64 => "a whole number of seconds", "3600",
        /// Permissions of the exports' Unix sockets, in octal digits: to connect takes the right to write, as in `0660` for
        /// a group. They hold for sockets that the daemon makes, from when they are made; without it the umask decides.
        socket_mode: Option<String> => "octal digits in quotes", "\"0660\"",
        /// The group of these sockets, by its name in /etc/group or by its number; without it the daemon's own.
        socket_group: Option<String> => "a group or its number, in quotes", "\"kvm\"",
    }
}

section! {
    /// Certificates of the exports.
    TlsKeys {
        /// The exports' certificate, then those between it and its root; PEM. Without it there is
        /// no TLS.
        certificate: PathBuf => "a path in quotes", "\"/etc/forebay/server.pem\"",
        /// Its private key, not encrypted; RSA of 2048 to 8192 bits, ECDSA or Ed25519; PEM.
        key: PathBuf => "a path in quotes", "\"/etc/forebay/server.key\"",
        /// Roots of clients' certificates; with it clients need one, without it every client may
        /// come.
        client_ca: Option<PathBuf> => "a path in quotes", "\"/etc/forebay/ca.pem\"",
        /// `forced`: every client has to use TLS; `offered`: those of exports that were added with
        /// `--require-tls`, the others may.
        #[serde(default)]
        mode: TlsWho => "\"forced\" or \"offered\"", "\"forced\"",
    }
}

/// Who has to use TLS. If nobody says, all: who sets up certificates does not expect that somebody
/// is served without them.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TlsWho {
    /// Everybody.
    #[default]
    Forced,
    /// Clients of exports that ask for it.
    Offered,
}

/// The sections by name; the first one's keys stand before any section.
const SECTIONS: [(&str, &[Field]); 5] = [
    ("", Config::KEYS),
    ("control", Control::KEYS),
    ("devices", Devices::KEYS),
    ("exports", Exports::KEYS),
    ("tls", TlsKeys::KEYS),
];

/// The names of the sections.
pub(super) fn sections() -> impl Iterator<Item = &'static str> {
    SECTIONS.into_iter().map(|(name, _)| name).filter(|name| !name.is_empty())
}

/// One key, for the reference.
pub(crate) struct Key {
    /// With its section.
    pub(crate) name: String,
    /// As it is written in the file; empty if it has no value.
    pub(crate) default: String,
    /// What it is for.
    pub(crate) meaning: String,
    /// What may be its value, in words.
    pub(super) takes: &'static str,
    /// A line that sets it.
    pub(super) example: String,
}

/// The defaults, with every section in it.
fn documented() -> Config {
    let none = PathBuf::new();
    let tls =
        TlsKeys { certificate: none.clone(), key: none, client_ca: None, mode: TlsWho::default() };
    Config { tls: Some(tls), ..Config::default() }
}

/// All keys with their defaults.
pub(crate) fn keys() -> Vec<Key> {
    let defaults = serde_json::to_value(documented()).unwrap_or_default();
    let mut all = Vec::new();
    for (section, keys) in SECTIONS {
        let values = if section.is_empty() { &defaults } else { &defaults[section] };
        for &Field { name: key, meaning, takes, example } in keys {
            let value = &values[key];
            if value.is_object() {
                continue;
            }
            let name = if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") };
            let none = value.is_null() || value == "";
            let default = if none { String::new() } else { value.to_string() };
            let (meaning, example) = (meaning.trim().to_owned(), format!("{key} = {example}"));
            all.push(Key { name, default, meaning, takes, example });
        }
    }
    all
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: "/var/lib/forebay".into(),
            run_dir: "/run/forebay".into(),
            reactors: None,
            host_id: None,
            control: Control::default(),
            devices: Devices::default(),
            exports: Exports::default(),
            tls: None,
        }
    }
}

impl Default for Control {
    fn default() -> Self {
        Self { socket: CONTROL_PATH.into(), mode: "0600".into() }
    }
}

impl Default for Devices {
    fn default() -> Self {
        // Disks that are slow to appear at boot are there well within half a minute.
        let tools = Tools::default();
        Self {
            scan: vec!["/dev/disk/by-id/*".into()],
            wait_s: 30,
            // What changes in an SSD changes in hours; asking takes milliseconds.
            health_s: 600,
            replace_failing: false,
            smartctl: tools.smartctl,
            nvme: tools.nvme,
        }
    }
}

impl Default for Exports {
    fn default() -> Self {
        Self {
            connections_max: None,
            inflight_bytes_max: BYTES_INFLIGHT_MAX,
            memory_bytes_max: SHARE_BYTES_INFLIGHT_MAX,
            idle_s: 0,
            socket_mode: None,
            socket_group: None,
        }
    }
}

impl Config {
    /// Reads `path`; without one the usual place, where it may be missing.
    ///
    /// # Errors
    /// If it cannot be read or used, with the place in it.
    pub(crate) fn read(path: Option<&Path>) -> Result<Config> {
        let place = path.unwrap_or(Path::new(CONFIG_PATH));
        let text = match std::fs::read_to_string(place) {
            Err(error) if path.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Config::default());
            }
            other => other.map_err(|error| {
                Failure::system(format!("read the configuration {}", place.display()), &error)
                    .hint("check the path; without --config the defaults are used")
            })?,
        };
        Config::parse(&text).map_err(|failure| failure.on(place.display()))
    }

    /// Reads a text.
    fn parse(text: &str) -> Result<Config> {
        let config: Config = toml::from_str(text).map_err(|error| check::explain(text, &error))?;
        check::check(text, &config)?;
        Ok(config)
    }

    /// The exports' certificates, if there are to be any.
    pub(super) fn load_tls(&self) -> Result<Option<Tls>> {
        let Some(TlsKeys { certificate, key, client_ca, mode }) = &self.tls else {
            return Ok(None);
        };
        let mode = match mode {
            TlsWho::Forced => TlsMode::Forced,
            TlsWho::Offered => TlsMode::Offered,
        };
        let files = TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: client_ca.clone(),
        };
        let loaded = Tls::load(&files, mode).map_err(|error| {
            Failure::new(error.to_string()).on("[tls] in the configuration").hint(error.hint())
        })?;
        Ok(Some(loaded))
    }

    /// Who opens pools here; none if nobody can tell.
    pub(super) fn machine(&self) -> Option<Host> {
        machine::this(self.host_id.as_deref())
    }

    /// What the clients of an export may have.
    pub(super) fn clients(&self) -> Clients {
        let &Exports { connections_max, inflight_bytes_max, memory_bytes_max, idle_s, .. } =
            &self.exports;
        Clients {
            places: connections_max.map(|count| Places::new(count.get())),
            inflight_bytes_max,
            memory_bytes_max,
            idle_max: (idle_s > 0).then_some(idle_s.saturating_mul(SECOND)),
        }
    }

    /// The most memory that requests of clients take on one reactor.
    pub(super) fn share_bytes_max(&self) -> u64 {
        share_bytes_max(self.exports.memory_bytes_max)
    }

    /// The permissions of the control socket.
    pub(super) fn control_mode(&self) -> Result<u32> {
        mode_of("control.mode", &self.control.mode)
    }

    /// The permissions of the exports' sockets.
    pub(super) fn socket_mode(&self) -> Result<Option<u32>> {
        let mode = self.exports.socket_mode.as_ref();
        mode.map(|mode| mode_of("exports.socket_mode", mode)).transpose()
    }

    /// The group of the exports' sockets, if it is not the daemon's own.
    pub(super) fn socket_group(&self) -> Result<Option<u32>> {
        let Some(name) = &self.exports.socket_group else { return Ok(None) };
        // The highest number is the system's word for none.
        if let Some(number) = name.parse().ok().filter(|number| *number != u32::MAX) {
            return Ok(Some(number));
        }
        let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
        group_in(&groups, name).map(Some).ok_or_else(|| {
            let what = format!("exports.socket_group is {name:?}, which is not in /etc/group");
            let known = groups.lines().filter_map(|line| line.split(':').next());
            let nearest = text::did_you_mean(name, known);
            Failure::new(what).hint(format!(
                "{nearest}name a group that is there; of one that `getent group` knows from elsewhere write the \
                 number",
            ))
        })
    }

    /// Who may connect to the exports' sockets.
    pub(super) fn socket_access(&self) -> Result<SocketAccess> {
        Ok(SocketAccess { mode: self.socket_mode()?, group: self.socket_group()? })
    }
}

/// Permissions as the value of `key` says.
fn mode_of(key: &str, mode: &str) -> Result<u32> {
    let parsed = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o777);
    parsed.ok_or_else(|| {
        Failure::new(format!("{key} is {mode:?}"))
            .hint("write octal digits as in \"0600\", or \"0660\" for a group")
    })
}

/// The number of a group in the text of /etc/group: `NAME:x:NUMBER:MEMBERS`, see group(5).
fn group_in(groups: &str, name: &str) -> Option<u32> {
    let mut lines = groups.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    fn refused(text: &str) -> (String, String) {
        let failure = Config::parse(text).expect_err("refused");
        (failure.what().to_owned(), failure.hint_text().to_owned())
    }

    #[test]
    fn an_unknown_key_is_named_with_its_place_and_the_nearest_one() {
        let (what, hint) = refused("state_dir = \"/x\"\n\n[devices]\nwait = 3\n");
        assert!(what.starts_with("line 4, column 1: unknown field `wait`"), "{what}");
        assert_eq!(hint, "did you mean `wait_s`?");
        let (what, hint) = refused("[control]\nsocket = \"/s\"\n  moed = \"0600\"\n");
        assert!(what.starts_with("line 3, column 3: unknown field `moed`"), "{what}");
        assert_eq!(hint, "did you mean `mode`?");
    }

    #[test]
    fn a_key_with_two_letters_swapped_or_one_wrong_is_known_again() {
        for (section, keys) in SECTIONS {
            for Field { name: key, .. } in keys {
                for wrong in text::slips(key) {
                    let text = match section {
                        "" => format!("{wrong} = 1\n"),
                        section => format!("[{section}]\n{wrong} = 1\n"),
                    };
                    assert_eq!(refused(&text).1, format!("did you mean `{key}`?"), "{text}");
                }
            }
        }
    }

    #[test]
    fn every_section_of_the_file_is_listed_with_its_keys() {
        let defaults = serde_json::to_value(documented()).unwrap();
        let leaves: usize = defaults
            .as_object()
            .unwrap()
            .values()
            .map(|value| value.as_object().map_or(1, serde_json::Map::len))
            .sum();
        assert_eq!(keys().len(), leaves, "a section is missing in SECTIONS");
        let wait = keys().into_iter().find(|key| key.name == "devices.wait_s").unwrap();
        assert_eq!(wait.default, "30");
        assert!(wait.meaning.starts_with("How many seconds a start waits"), "{}", wait.meaning);
    }

    #[test]
    fn a_value_of_another_kind_is_told_what_the_key_takes_with_an_example() {
        let (what, hint) = refused("[devices]\nwait_s = \"soon\"\n");
        let takes = "devices.wait_s takes a whole number of seconds";
        assert_eq!(what, format!("line 2, column 10: {takes}, not \"soon\""));
        assert_eq!(hint, "write it as in `wait_s = 30`");
        let (what, hint) = refused("devices = 3");
        assert_eq!(what, "line 1, column 11: devices is a section, not 3");
        assert_eq!(hint, "write [devices] on a line of its own, and its keys below");
        let (what, _) = refused("[devices]\nscan = [\"/a\",\n 7]");
        assert!(what.starts_with("line 3, column 2: devices.scan takes a list of "), "{what}");
        for key in keys() {
            let (section, name) = key.name.rsplit_once('.').unwrap_or(("", &key.name));
            let of = |line: &str| match section {
                "" => line.to_owned(),
                "tls" => {
                    let others = ["certificate = \"/c\"", "key = \"/k\""];
                    let others =
                        others.iter().filter(|other| !other.starts_with(&format!("{name} ")));
                    let others: String = others.map(|other| format!("{other}\n")).collect();
                    format!("[tls]\n{others}{line}")
                }
                _ => format!("[{section}]\n{line}"),
            };
            // No key takes a date.
            let (what, hint) = refused(&of(&format!("{name} = 1979-05-27")));
            let takes = format!("{} takes {}, not 1979-05-27", key.name, key.takes);
            assert!(what.ends_with(&takes) && !key.takes.is_empty(), "{what}");
            assert_eq!(hint, format!("write it as in `{}`", key.example));
            let taken = toml::from_str::<Config>(&of(&key.example));
            assert!(taken.is_ok(), "{}: {taken:?}", key.example);
        }
    }

    /// A text that sets everything.
    const WHOLE: &str = "state_dir = \"/x\"\nrun_dir = \"/y\"\nreactors = 2\n\
        host_id = \"0123456789abcdef0123456789abcdef\"\n\
        [control]\nsocket = \"/s\"\nmode = \"0660\"\n\
        [devices]\nscan = [\"/dev/disk/by-id/*\"]\nwait_s = 3\n\
        health_s = 60\nreplace_failing = true\nsmartctl = \"/usr/sbin/smartctl\"\nnvme = \"/usr/sbin/nvme\"\n[exports]\nconnections_max = 9\ninflight_bytes_max = 67117056\n\
        memory_bytes_max = 268468224\nidle_s = 60\nsocket_mode = \"0660\"\nsocket_group = \"0\"\n\
        [tls]\ncertificate = \"/c\"\nkey = \"/k\"\nclient_ca = \"/a\"\nmode = \"offered\"\n";

    /// Refused with what is wrong and what to do, or taken.
    fn judge(text: &str) {
        if let Err(failure) = Config::parse(text) {
            assert!(!failure.what().is_empty() && !failure.what().contains('\n'), "{text:?}");
            assert!(!failure.hint_text().is_empty(), "{text:?}: {}", failure.what());
        }
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused_with_a_hint(text in "(?s).{0,200}") {
            judge(&text);
        }

        #[test]
        fn a_text_that_is_right_but_for_some_changes_is_too(
            changes in vec((any::<Index>(), 0..5_u8, "[ -~\n\\[\\]=\"'{}]{1,3}"), 1..6),
        ) {
            let mut text: Vec<char> = WHOLE.chars().collect();
            for (at, how, other) in changes {
                let at = at.index(text.len());
                let line = text[at..].iter().position(|&c| c == '\n').unwrap_or(0);
                match how {
                    0 => drop(text.remove(at)),
                    1 => text.splice(at..at, other.chars()).for_each(drop),
                    2 => text.splice(at..=at, other.chars()).for_each(drop),
                    3 => drop(text.drain(at..at + line)),
                    _ => {
                        let again: Vec<char> = text[at..at + line].to_vec();
                        text.extend(again);
                    }
                }
                if text.is_empty() {
                    break;
                }
            }
            judge(&text.into_iter().collect::<String>());
        }
    }

    #[test]
    fn a_text_that_sets_everything_is_taken() {
        let config = Config::parse(WHOLE).unwrap();
        assert_eq!(config.control_mode().unwrap(), 0o660);
        let access = config.socket_access().unwrap();
        assert_eq!((access.mode, access.group), (Some(0o660), Some(0)));
        let keys = keys();
        assert!(keys.iter().all(|key| WHOLE.contains(key.name.rsplit('.').next().unwrap())));
        assert_eq!(WHOLE.matches(" = ").count(), keys.len());
    }

    #[test]
    fn what_no_type_says_is_refused_at_its_place() {
        let table = [
            ("\nreactors = 300", "line 2, column 12: reactors is more"),
            ("state_dir = \"x\"", "line 1, column 13: state_dir is x"),
            ("[control]\n  socket = \"x.sock\"", "line 2, column 12: control.socket is x.sock"),
            ("control.mode = \"rw\"", "line 1, column 16: control.mode is"),
            ("control = { mode = \"rw\" }", "line 1, column 20: control.mode is"),
            ("[exports]\nsocket_mode = \"0888\"", "line 2, column 15: exports.socket_mode is"),
            ("[exports]\nsocket_group = \"n o\"", "line 2, column 16: exports.socket_group is"),
            ("exports.socket_group = \"4294967295\"", "line 1, column 24: exports.socket_group is"),
            ("host_id = \"machine\"", "line 1, column 11: host_id is not"),
            ("[devices]\nscan = [\"/a\",\n \"/dev/***\"]", "line 3, column 2: the pattern"),
            ("[devices]\nscan = [\"dev/sd*\"]", "line 2, column 9: the pattern"),
            (
                "[devices]\nreplace_failing = true\nhealth_s = 0",
                "line 2, column 19: devices.replace_failing",
            ),
            (
                "[exports]\ninflight_bytes_max = 4096",
                "line 2, column 22: exports.inflight_bytes_max",
            ),
            ("[exports]\nmemory_bytes_max = 4096", "line 2, column 20: exports.memory_bytes_max"),
            (
                "[exports]\ninflight_bytes_max = 1_000_000_000",
                "line 2, column 22: exports.memory_bytes_max is 268468224",
            ),
            (
                "[exports]\nmemory_bytes_max = 1_125_899_906_842_625",
                "line 2, column 20: exports.memory_bytes_max is 1125899906842625, and the most is \
                 1125899906842624",
            ),
            (
                "[exports]\ninflight_bytes_max = 9223372036854775807\nmemory_bytes_max = 9223372036854775807",
                "line 3, column 20: exports.memory_bytes_max is",
            ),
            (
                "[exports]\nconnections_max = 0",
                "line 2, column 19: exports.connections_max takes a whole number of clients from 1 on",
            ),
            ("[tls]\ncertificate = \"c\"\nkey = \"/k\"", "line 2, column 15: tls.certificate"),
        ];
        for (text, begin) in table {
            let (what, hint) = refused(text);
            assert!(what.starts_with(begin), "{text}: {what}");
            assert!(!hint.is_empty(), "{text}");
        }
        let long = format!("[control]\nsocket = \"/{}\"", "n".repeat(101));
        assert!(refused(&long).0.starts_with("line 2, column 10: control.socket has"));
        let near = "[tls]\ncertificate = \"/c\"\nkey = \"/k\"\nmode = \"forcd\"";
        assert_eq!(refused(near).1, "did you mean `forced`?");
        let near = "[exports]\nsocket_group = \"roto\"";
        assert!(refused(near).1.starts_with("did you mean root? "));
    }

    #[test]
    fn a_group_is_known_by_its_name() {
        let groups = "root:x:0:\nkvm:x:107:qemu,me\nbroken\nempty:x::\n";
        assert_eq!(group_in(groups, "kvm"), Some(107));
        for none in ["qemu", "kv", "broken", "empty", ""] {
            assert_eq!(group_in(groups, none), None, "{none}");
        }
    }

    #[test]
    fn wrong_values_are_refused() {
        assert!(refused("reactors = 0").0.starts_with("line 1, column 12"));
        assert!(refused("host_id = \"machine\"").1.contains("uuidgen"));
        assert!(refused("state_dir = 7").0.contains("line 1, column 13"));
        assert!(refused("[control]\nmode = \"rw\"").1.contains("0600"));
        assert!(refused("[devices]\nscan = [\"/dev/***\"]").0.contains("devices.scan"));
        assert!(refused("state_dir = \"x\"").0.contains("not absolute"));
        assert!(refused("[control]\nsocket = \"x.sock\"").0.contains("not absolute"));
        let long = format!("[control]\nsocket = \"/{}\"", "n".repeat(101));
        assert!(refused(&long).0.contains("at most 101"));
        assert!(refused("reactors = 300").0.contains("more than 256"));
        assert!(refused("= ").0.starts_with("line 1"));
        assert!(refused("[tls]\nkey = \"/k\"").0.contains("missing field `certificate`"));
        let off = "[tls]\ncertificate = \"/c\"\nkey = \"/k\"\nmode = \"off\"";
        let takes = "line 4, column 8: tls.mode takes \"forced\" or \"offered\", not \"off\"";
        assert_eq!(refused(off).0, takes);
        assert!(Config::parse("").is_ok());
    }
}
