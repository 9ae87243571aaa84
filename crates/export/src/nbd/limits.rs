//! Every limit of the NBD server, and of the client for origins, once.

use forebay_device::runtime::{MILLISECOND, Nanos, SECOND};

/// Smallest unit of a request, in bytes: the sector of Linux. Other requests get `EINVAL`.
pub const SECTOR_BYTES: u32 = 512;

/// The unit that clients are asked to prefer, in bytes: a page, and the sector of most SSDs.
pub const PREFERRED_BYTES: u32 = 4096;

/// Longest read or write, in bytes: what clients assume of a server that states no limit.
/// Longer requests get `EINVAL`. Requests without a payload may be as long as the export, if their
/// headers can say so.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// Longest payload of a refused request that is skipped, in bytes: what a header of the old form can
/// say. A client that announces more is cut off.
pub const SKIPPED_BYTES_MAX: u64 = u32::MAX as u64;

/// Bytes that are trimmed or zeroed at a time; a longer request is carried out in such steps, so
/// that a server that is stopped need not wait for all of a large disk. It gets `ESHUTDOWN` then.
pub const STEP_BYTES: u64 = 1 << 30;

/// Extents of an answer about a range: 16 KiB for two contexts with extended headers. With more the
/// answer covers less than what was asked for, and the client asks again.
pub const EXTENTS_MAX: usize = 512;

/// Requests of one connection in progress or with unsent replies: the deepest queue that one
/// Linux block device asks for by default. At the limit the server stops reading.
pub const REQUESTS_INFLIGHT_MAX: usize = 128;

/// Memory of one connection's requests in progress, in bytes: two of the longest requests.
/// At the limit the server stops reading, so that a client that does not read its replies
/// holds no more than this. Where it is set: see [`INFLIGHT_BYTES_MIN`].
pub const BYTES_INFLIGHT_MAX: u64 = 2 * INFLIGHT_BYTES_MIN;

/// The least of it that can be set: the longest request, for one must be able to pass.
pub const INFLIGHT_BYTES_MIN: u64 = REQUEST_BYTES_MAX as u64 + REPLY_HEADROOM_BYTES as u64;

/// Memory of all requests in progress on the servers that have a [share](crate::nbd::Share)
/// together, in bytes: what four connections may have at the most. At the limit a connection has one request at a
/// time, which is of [`FIRST_BYTES_MAX`] or waits for its turn.
pub const SHARE_BYTES_INFLIGHT_MAX: u64 = 4 * BYTES_INFLIGHT_MAX;

/// What of it is kept for connections that have nothing in progress, in bytes: a quarter, two of the longest requests.
/// Without it, clients of a disk that hangs could keep others' long requests waiting for as long as that takes.
pub const KEPT_BYTES: u64 = BYTES_INFLIGHT_MAX;

/// Memory of a request that passes whatever others have in progress, if its connection has nothing, in bytes: writes of
/// 128 KiB, and reads of 124 KiB. What most clients ask for is shorter, and [`SHARE_CONNECTIONS_MAX`] of them are as much
/// as two connections may have.
pub const FIRST_BYTES_MAX: u64 = (128 << 10) + REPLY_HEADROOM_BYTES as u64;

/// The most memory that requests of the servers with a share take, if it was made with so many bytes: that many, and one
/// request of each connection that came when they were in use.
pub const fn share_bytes_max(bytes_max: u64) -> u64 {
    bytes_max + SHARE_CONNECTIONS_MAX as u64 * FIRST_BYTES_MAX
}

/// The same where nothing is set.
pub const SHARE_BYTES_MAX: u64 = share_bytes_max(SHARE_BYTES_INFLIGHT_MAX);

/// Space kept before a read's payload for reply headers: a page, so that the payload stays
/// aligned for O_DIRECT.
pub const REPLY_HEADROOM_BYTES: usize = 4096;

/// Bytes that are received ahead of a client with short writes: a queue of 32 with a page each, and
/// their headers. A connection that has had such a write keeps this much.
pub const AHEAD_BYTES_MAX: usize = 33 * 4096;

/// Connections of one server at a time. At the limit further clients wait in the kernel's
/// backlog.
pub const CONNECTIONS_MAX: usize = 256;

/// Connections of the servers that have a [share](crate::nbd::Share) together at a time: four
/// servers' worth, so that nobody who fills one of them keeps clients from the others. At the limit
/// further clients wait in the kernel's backlog.
pub const SHARE_CONNECTIONS_MAX: usize = 4 * CONNECTIONS_MAX;

/// Connections to one export at a time: half of [`CONNECTIONS_MAX`], so that the clients of one
/// export leave room for those of another. At the limit a client is refused with
/// `NBD_REP_ERR_POLICY`.
pub const EXPORT_CONNECTIONS_MAX: usize = CONNECTIONS_MAX / 2;

/// Longest payload of an option that is looked at, in bytes: a name of [`NAME_BYTES_MAX`], and
/// more information requests than exist. A longer one is skipped and refused.
pub const OPTION_BYTES_MAX: u32 = 16 << 10;

/// Longest export name or description, in bytes: the protocol's limit for strings.
pub const NAME_BYTES_MAX: usize = 4096;

/// Bytes of an encrypted connection that are received, and sent, at a time: four of the longest
/// records. Such a connection holds this much twice, and what is left of a record.
pub const TLS_PIECE_BYTES: usize = 64 << 10;

/// Buffers that the connections of the servers with a [share](crate::nbd::Share) hold beside their
/// requests, in bytes.
pub const SHARE_CONNECTION_BYTES_MAX: u64 =
    (SHARE_CONNECTIONS_MAX * (AHEAD_BYTES_MAX + 2 * TLS_PIECE_BYTES)) as u64;

/// Time for a client to take the last word of an encrypted connection.
pub const TLS_CLOSE_TIME_MAX: Nanos = SECOND;

/// Time for a client to finish negotiating, with the handshake of TLS; after that the connection is closed, so that
/// strangers cannot hold all [`CONNECTIONS_MAX`] places.
pub const NEGOTIATION_TIME_MAX: Nanos = 30 * SECOND;

/// Time without a step by a client that is in the middle of sending a request or taking a reply, if
/// others wait for memory meanwhile; after that its connection is closed. While there is memory
/// enough, who is stopped for a while is waited for.
pub const STALL_TIME_MAX: Nanos = 60 * SECOND;

/// How often it is looked for clients that do nothing, while that matters.
pub const WATCH_INTERVAL: Nanos = 5 * SECOND;

/// Time for clients to take the replies of their last requests after a stop; connections that
/// are not drained then are cut off.
pub const DRAIN_TIME_MAX: Nanos = 10 * SECOND;

/// Complaints of one server that are told within [`COMPLAINTS_SPAN`]: enough to see what is wrong
/// with somebody's clients, and 5 MB a day of a log in the worst case. Those above are counted, and told of by kind when
/// the span is over.
pub const COMPLAINTS_MAX: u32 = 20;

/// See [`COMPLAINTS_MAX`].
pub const COMPLAINTS_SPAN: Nanos = 60 * SECOND;

/// Pause after a failed accept: the usual reason is a lack of file descriptors, which passes.
pub const ACCEPT_PAUSE: Nanos = 100 * MILLISECOND;

/// Largest unit of requests that an origin's server may ask for, in bytes: a sector of 4096, as of any
/// other origin. One that asks for more is refused.
pub const ORIGIN_BLOCK_BYTES_MAX: u32 = 4096;

/// Time to connect to an origin's server and to agree with it; after that the next attempt begins. It is less
/// than the 5 seconds that the daemon waits for any origin, so that the reason is known by then.
pub const ORIGIN_CONNECT_TIME_MAX: Nanos = 4 * SECOND;

/// Time for which requests wait for an origin's server that is gone: Linux gives a disk as long for one
/// request. A restart of a server takes a few seconds. Behind it they fail, as all others do until the server
/// is back; what is dirty stays in the cache. One attempt to connect may make it longer.
pub const ORIGIN_RECONNECT_TIME_MAX: Nanos = 30 * SECOND;

/// Pause before the second attempt to connect again; the first one is made at once. Each further pause is
/// twice as long, …
pub const ORIGIN_RECONNECT_PAUSE: Nanos = 50 * MILLISECOND;
/// … up to this one: who comes back waits for us no longer than that.
pub const ORIGIN_RECONNECT_PAUSE_MAX: Nanos = SECOND;

/// How often a request is sent again because its connection broke. One that meets more breaks in a row may be
/// what the server dies of, and fails.
pub const RESENDS_MAX: u32 = 4;

/// Requests that go to an origin's server in one call of the system.
pub const ORIGIN_BATCH_MAX: usize = 64;

/// Bytes that are received ahead of replies of an origin's server: a queue of 15 reads of a page each.
pub const ORIGIN_AHEAD_BYTES: usize = 64 << 10;

/// Pieces in which the reply to a read may come, unless they follow each other: as many as the longest
/// read has sectors. With more the connection is given up.
pub const CHUNKS_MAX: usize = (REQUEST_BYTES_MAX / SECTOR_BYTES) as usize;

/// Longest part of a reply that tells of an error, in bytes: the protocol's limit for strings, and what is around
/// it. A server that announces more is given up.
pub const ERROR_BYTES_MAX: u32 = 8192;

/// Answers to one option of the negotiation: more kinds of information than there are.
pub const OPTION_ANSWERS_MAX: usize = 64;

/// Zeroes that are written at once to a server that has no command for it, …
pub const ZEROES_BYTES: u32 = 1 << 20;
/// … and parts of one request under way at the same time: a server's disk is kept busy and not flooded.
pub const PARTS_INFLIGHT_MAX: usize = 4;

/// How often it is looked whether requests may go out while they may not.
pub const GATE_LOOK_INTERVAL: Nanos = 50 * MILLISECOND;

const _: () = assert!(ORIGIN_RECONNECT_PAUSE <= ORIGIN_RECONNECT_PAUSE_MAX);
// Two parts to each request of a batch; `Stream::send_parts` takes 1024.
const _: () = assert!(2 * ORIGIN_BATCH_MAX <= 1024);
const _: () = assert!(REPLY_HEADROOM_BYTES.is_multiple_of(forebay_device::buf::BUF_ALIGN_BYTES));
const _: () = assert!(REQUEST_BYTES_MAX.is_multiple_of(PREFERRED_BYTES));
const _: () = assert!(PREFERRED_BYTES.is_multiple_of(SECTOR_BYTES));
const _: () = assert!(STEP_BYTES.is_multiple_of(PREFERRED_BYTES as u64));
const _: () = assert!(OPTION_BYTES_MAX as usize > 2 * NAME_BYTES_MAX);
