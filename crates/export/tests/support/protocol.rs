//! A client that speaks bytes.

use forebay_device::{Buf, IoError};
use forebay_export::Transport;

/// A client in transmission.
pub struct Client<T> {
    pub stream: T,
    structured: bool,
}

/// A request with an extended header.
pub fn extended(kind: u16, flags: u16, cookie: u64, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = 0x21e4_1c71_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend([cookie, offset, len].map(u64::to_be_bytes).concat());
    bytes
}

/// The payload of an option that asks for contexts of the only export.
pub fn contexts(queries: &[&str]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        bytes.extend((query.len() as u32).to_be_bytes());
        bytes.extend(query.as_bytes());
    }
    bytes
}

/// A chunk of a reply: its request's cookie, flags, kind and content.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk {
    pub cookie: u64,
    pub flags: u16,
    pub kind: u16,
    pub body: Vec<u8>,
}

/// A reply: the request's cookie, the error number, the data.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub data: Vec<u8>,
}

pub fn option(number: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

pub fn request(kind: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().unwrap()
}

impl<T: Transport> Client<T> {
    /// A client that has nothing behind it.
    pub fn bare(stream: T, structured: bool) -> Self {
        Self { stream, structured }
    }

    /// Negotiates the only export of a server.
    pub async fn open(stream: T, structured: bool) -> Self {
        let mut client = Self { stream, structured };
        client.receive(18).await.unwrap();
        client.send(&3_u32.to_be_bytes()).await;
        if structured {
            client.send(&option(8, b"")).await;
            let reply = client.receive(20).await.unwrap();
            assert_eq!(u32::from_be_bytes(field(&reply, 12)), 1);
        }
        client.send(&option(1, b"")).await;
        client.receive(10).await.unwrap();
        client
    }

    /// Negotiates extended headers or structured replies, and both contexts.
    pub async fn open_with_contexts(stream: T, is_extended: bool) -> Self {
        let mut client = Self { stream, structured: true };
        client.receive(18).await.unwrap();
        client.send(&3_u32.to_be_bytes()).await;
        let all = contexts(&["base:allocation", "forebay:tier"]);
        for (number, payload) in
            [(if is_extended { 11 } else { 8 }, &[][..]), (10, &all), (7, &[0; 6])]
        {
            client.send(&option(number, payload)).await;
            loop {
                let reply = client.receive(20).await.unwrap();
                client.receive(u32::from_be_bytes(field(&reply, 16)) as usize).await.unwrap();
                match u32::from_be_bytes(field(&reply, 12)) {
                    1 => break,
                    kind => assert!(kind < 1 << 31, "{number} is refused"),
                }
            }
        }
        client
    }

    /// The next chunk; `None` for a simple reply without an error.
    pub async fn chunk(&mut self) -> Option<Chunk> {
        let head = self.receive(16).await.unwrap();
        let magic = u32::from_be_bytes(field(&head, 0));
        let len = match magic {
            0x6744_6698 => {
                assert_eq!(field(&head, 4), [0; 4], "no error");
                return None;
            }
            0x668e_33ef => u64::from(u32::from_be_bytes(field(&self.receive(4).await.unwrap(), 0))),
            0x6e8a_278c => u64::from_be_bytes(field(&self.receive(16).await.unwrap(), 8)),
            _ => panic!("magic {magic:x}"),
        };
        Some(Chunk {
            cookie: u64::from_be_bytes(field(&head, 8)),
            flags: u16::from_be_bytes(field(&head, 4)),
            kind: u16::from_be_bytes(field(&head, 6)),
            body: self.receive(len as usize).await.unwrap(),
        })
    }

    pub async fn receive(&mut self, len: usize) -> Result<Vec<u8>, IoError> {
        let (buf, result) = self.stream.recv_exact(Buf::new(len)).await;
        result.map(|()| buf.to_vec())
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.send_all(Buf::copy_of(bytes).freeze()).await.unwrap();
    }

    /// The next reply; `read_len` tells how much data belongs to a simple reply of a cookie.
    pub async fn reply(&mut self, read_len: impl Fn(u64) -> usize) -> Result<Reply, IoError> {
        let head = self.receive(16).await?;
        let magic = u32::from_be_bytes(field(&head, 0));
        if magic == 0x6744_6698 {
            let error = u32::from_be_bytes(field(&head, 4));
            let cookie = u64::from_be_bytes(field(&head, 8));
            assert!(!self.structured || read_len(cookie) == 0, "reads are structured");
            let len = if error == 0 { read_len(cookie) } else { 0 };
            let data = self.receive(len).await?;
            return Ok(Reply { cookie, error, data });
        }
        assert!(self.structured && magic == 0x668e_33ef, "magic {magic:x}");
        assert_eq!(field(&head, 4), [0, 1], "the last chunk");
        let cookie = u64::from_be_bytes(field(&head, 8));
        let len = self.receive(4).await?;
        let body = self.receive(u32::from_be_bytes(field(&len, 0)) as usize).await?;
        Ok(match u16::from_be_bytes(field(&head, 6)) {
            0 => Reply { cookie, error: 0, data: Vec::new() },
            1 => Reply { cookie, error: 0, data: body[8..].to_vec() },
            0x8001 => {
                let error = u32::from_be_bytes(field(&body, 0));
                Reply { cookie, error, data: Vec::new() }
            }
            kind => panic!("chunk type {kind}"),
        })
    }
}

/// The error numbers of replies.
pub fn errors(replies: &[Reply]) -> Vec<u32> {
    replies.iter().map(|reply| reply.error).collect()
}

/// Big-endian numbers of 32 bits.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_be_bytes(*word)).collect()
}
