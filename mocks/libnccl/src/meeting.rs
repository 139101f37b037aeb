//! The ranks' meeting point: a thread of the process that made the unique id, at a TCP address that
//! the id names.
//!
//! It tells each rank the others, then reduces their messages, operation by operation.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sum::reduce;

/// `NCCL_UNIQUE_ID_BYTES`.
pub(crate) const ID_BYTES: usize = 128;
const MAGIC: [u8; 8] = *b"mockNCCL";

/// What a rank says of itself.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) ranks: u32,
    pub(crate) rank: u32,
    pub(crate) version: i32,
    pub(crate) gpu: [u8; 16],
}

const HELLO: usize = 12 + 16;

impl Hello {
    fn bytes(&self) -> [u8; HELLO] {
        let mut b = [0; HELLO];
        b[..4].copy_from_slice(&self.ranks.to_ne_bytes());
        b[4..8].copy_from_slice(&self.rank.to_ne_bytes());
        b[8..12].copy_from_slice(&self.version.to_ne_bytes());
        b[12..].copy_from_slice(&self.gpu);
        b
    }

    fn read(from: &mut impl Read) -> io::Result<Hello> {
        let mut b = [0; HELLO];
        from.read_exact(&mut b)?;
        let word = |at: usize| u32::from_ne_bytes(b[at..at + 4].try_into().expect("four bytes"));
        Ok(Hello {
            ranks: word(0),
            rank: word(4),
            version: word(8) as i32,
            gpu: b[12..].try_into().expect("sixteen bytes"),
        })
    }
}

/// Opens a meeting and names it.
pub(crate) fn open() -> io::Result<[u8; ID_BYTES]> {
    static MEETINGS: AtomicU64 = AtomicU64::new(0);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let mut id = [0; ID_BYTES];
    id[..8].copy_from_slice(&MAGIC);
    id[8..10].copy_from_slice(&port.to_ne_bytes());
    let number = MEETINGS.fetch_add(1, Ordering::Relaxed);
    id[10..18].copy_from_slice(&(number << 32 | u64::from(std::process::id())).to_ne_bytes());
    std::thread::spawn(move || {
        // Ranks see that their connection has ended.
        let _ = serve(&listener, &id);
    });
    Ok(id)
}

/// Comes to a meeting: the connection, and all ranks in their order.
pub(crate) fn join(id: &[u8; ID_BYTES], hello: &Hello) -> io::Result<(TcpStream, Vec<Hello>)> {
    if id[..8] != MAGIC {
        return Err(io::Error::other("not an id of this library"));
    }
    let port = u16::from_ne_bytes([id[8], id[9]]);
    let mut to = TcpStream::connect(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    to.set_nodelay(true)?;
    to.write_all(id)?;
    to.write_all(&hello.bytes())?;
    let all = (0..hello.ranks).map(|_| Hello::read(&mut to));
    let all = all.collect::<io::Result<_>>()?;
    Ok((to, all))
}

fn serve(listener: &TcpListener, id: &[u8; ID_BYTES]) -> io::Result<()> {
    let mut here: Vec<(Hello, TcpStream)> = Vec::new();
    while here.is_empty() || here.len() < here[0].0.ranks as usize {
        let (mut s, _) = listener.accept()?;
        s.set_nodelay(true)?;
        let mut named = [0; ID_BYTES];
        s.read_exact(&mut named)?;
        let hello = Hello::read(&mut s)?;
        // Else a rank of another communicator, or one that came twice.
        if named == *id && !here.iter().any(|(h, _)| h.rank == hello.rank) {
            here.push((hello, s));
        }
    }
    here.sort_by_key(|(h, _)| h.rank);
    let table: Vec<u8> = here.iter().flat_map(|(h, _)| h.bytes()).collect();
    for (_, s) in &mut here {
        s.write_all(&table)?;
    }
    loop {
        operation(&mut here)?;
    }
}

/// An operation's head: type, reduction, bytes.
pub(crate) const HEAD: usize = 16;

fn operation(here: &mut [(Hello, TcpStream)]) -> io::Result<()> {
    let mut first = [0; HEAD];
    let mut total = Vec::new();
    for (i, (_, s)) in here.iter_mut().enumerate() {
        let mut head = [0; HEAD];
        s.read_exact(&mut head)?;
        let bytes = u64::from_ne_bytes(head[8..].try_into().expect("eight bytes"));
        if i > 0 && head != first {
            return Err(io::Error::other("ranks disagree about an operation"));
        }
        first = head;
        let mut data = vec![0; bytes as usize];
        s.read_exact(&mut data)?;
        match i {
            0 => total = data,
            _ => {
                let code = |at: usize| {
                    i32::from_ne_bytes(head[at..at + 4].try_into().expect("four bytes"))
                };
                reduce(code(0), code(4), &mut total, &data);
            }
        }
    }
    // The rank whose process this is comes last: it may end as soon as it has its result.
    for (_, s) in here.iter_mut().rev() {
        s.write_all(&total)?;
    }
    Ok(())
}
