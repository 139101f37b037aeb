//! Rendezvous: discovery and authentication among NICs of one host and one user.
//!
//! A directory of mode 0700 holds one Unix socket per NIC, named by its IPv4 address. A newcomer
//! connects, both sides check the other's uid, and one packet each way carries version, job secret,
//! network and the descriptors of what is shared. A peer that sends anything else is dropped.
//!
//! The directory of a job is removed by the NIC that leaves it last. The first NIC of a job removes
//! those of jobs whose processes were all killed ([`scratch`]).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::config::LocalConfig;
use crate::descriptors;
use crate::scratch::{self, Held};
use crate::wake::MARK_LINKS;
use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Version of the handshake, of everything in the shared segment, and of the areas of collectives.
const VERSION: u32 = 6;
const MAGIC: u32 = 0x4c42_5221;
/// Most exports of one memory.
pub(super) const MAX_EXPORTS: usize = 64;
/// Segment, wake page, wake event.
const FIXED_FDS: usize = 3;
const HEAD: usize = 4 + 4 + 32 + 4 + 4 + 8 + 8 + 8 + 8;
/// The answer to a NIC of another network.
const ELSEWHERE: [u8; 8] = *b"RBL-NET!";
const EXPORT: usize = 24;
const MAX_BYTES: usize = HEAD + MAX_EXPORTS * EXPORT;

/// Why the `local` transport cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The directory cannot be made or is not ours alone.
    #[error("rendezvous directory {}: {why}; set `local.directory` to a directory of your own", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another NIC of this user has the address.
    #[error("another NIC of this user already has the address {ip}; give this one its own `ip`")]
    AddressInUse {
        /// The address.
        ip: Ipv4Addr,
    },
    /// The memory has too many parts.
    #[error("the memory consists of {n} exported parts, but a peer can map only {MAX_EXPORTS}; export fewer, larger ones")]
    TooManyExports {
        /// How many.
        n: usize,
    },
    /// The system refused something.
    #[error("the system refused {what}: {source}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        #[source]
        source: std::io::Error,
    },
}

/// One mapped part of a memory, as announced to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ExportInfo {
    pub(super) file_offset: u64,
    pub(super) bus: u64,
    pub(super) len: u64,
}

/// A NIC's description of itself.
#[derive(Debug)]
pub(super) struct Hello {
    pub(super) ip: Ipv4Addr,
    pub(super) inline_window: u64,
    pub(super) network: Network,
    /// The link's number there, by which it is marked.
    pub(super) link: usize,
    pub(super) exports: Vec<ExportInfo>,
    /// Segment (from the side that connects), wake page, wake event, then the exports.
    pub(super) segment: Option<OwnedFd>,
    pub(super) wake: [OwnedFd; 2],
    pub(super) export_fds: Vec<OwnedFd>,
}

/// The network of a NIC, and whether it links NICs of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Network {
    pub(super) id: u64,
    pub(super) across: bool,
}

impl Network {
    /// As configured; else the network namespace of this thread. 0 where the system does not report
    /// it.
    pub(super) fn of(config: &LocalConfig) -> Network {
        let namespace = || {
            let stat = rustix::fs::stat("/proc/thread-self/ns/net").ok()?;
            // One number for both, which no other namespace has while this one lives.
            Some(stat.st_dev.rotate_left(32) ^ stat.st_ino)
        };
        Network {
            id: config.network.or_else(namespace).unwrap_or(0),
            across: config.across_networks,
        }
    }

    /// Whether two NICs may link.
    pub(super) fn reaches(self, other: Network) -> bool {
        self.id == other.id || (self.across && other.across)
    }
}

/// The directory where NICs of this user meet, held so that no process removes it as left behind.
pub(super) fn directory(configured: Option<&Path>) -> Result<(PathBuf, Held), LocalError> {
    let uid = rustix::process::getuid();
    let path = match configured {
        Some(p) => p.to_path_buf(),
        None => match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(run) if Path::new(&run).is_absolute() => Path::new(&run).join("ringbell"),
            _ => PathBuf::from(format!("/tmp/ringbell-{}", uid.as_raw())),
        },
    };
    let refuse = |why: String| LocalError::Directory {
        path: path.clone(),
        why,
    };
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let mut is_new = false;
    let make = || match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => {
            is_new |= made.is_ok();
            made
        }
    };
    // Not through a link: in /tmp any user could have put one there.
    let check = || match std::fs::symlink_metadata(&path) {
        Ok(meta) if !meta.is_dir() || meta.uid() != uid.as_raw() || meta.mode() & 0o077 != 0 => {
            Err(refuse(format!(
                "must be a directory of user {} with mode 0700, but is owned by {} with mode {:o}",
                uid.as_raw(),
                meta.uid(),
                meta.mode() & 0o7777
            )))
        }
        _ => Ok(()),
    };
    check()?;
    let held = scratch::hold(&path, make).map_err(|e| {
        descriptors::note(&e);
        refuse(e.to_string())
    })?;
    check()?;
    if let (true, true, Some(parent)) = (is_new, scratch::is_swept(&path), path.parent()) {
        scratch::sweep_in(parent);
    }
    Ok((path, held))
}

fn socket() -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let s = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok(s)
}

/// Where a NIC's socket lies, and its address.
struct Place {
    path: PathBuf,
    addr: SocketAddrUnix,
    /// An address has 108 bytes. A longer path goes through this descriptor of its directory.
    _directory: Option<OwnedFd>,
}

impl Place {
    fn new(dir: &Path, ip: Ipv4Addr) -> std::io::Result<Place> {
        let name = format!("{ip}.sock");
        let path = dir.join(&name);
        let (addr, directory) = match SocketAddrUnix::new(&path) {
            Ok(addr) => (addr, None),
            Err(_) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let fd = rustix::fs::open(dir, flags, Mode::empty())?;
                let short = format!("/proc/self/fd/{}/{name}", fd.as_raw_fd());
                (SocketAddrUnix::new(short)?, Some(fd))
            }
        };
        Ok(Place {
            path,
            addr,
            _directory: directory,
        })
    }
}

/// Listens under an address. A socket that a dead process has left behind is replaced.
pub(super) fn bind(dir: &Path, ip: Ipv4Addr) -> Result<(OwnedFd, PathBuf), LocalError> {
    let system = |source: std::io::Error| LocalError::System {
        what: "a Unix socket",
        source,
    };
    let place = Place::new(dir, ip).map_err(system)?;
    if connect(dir, ip).is_ok() {
        return Err(LocalError::AddressInUse { ip });
    }
    // No process answers there: at most a stale file.
    let _ = std::fs::remove_file(&place.path);
    let s = socket().map_err(system)?;
    match rustix::net::bind(&s, &place.addr) {
        Ok(()) => {}
        Err(rustix::io::Errno::ADDRINUSE) => return Err(LocalError::AddressInUse { ip }),
        Err(e) => return Err(system(e.into())),
    }
    rustix::net::listen(&s, 128).map_err(|e| system(e.into()))?;
    Ok((s, place.path))
}

/// Connects to the NIC with that address, if there is one.
pub(super) fn connect(dir: &Path, ip: Ipv4Addr) -> std::io::Result<OwnedFd> {
    let place = Place::new(dir, ip)?;
    let s = socket()?;
    rustix::net::connect(&s, &place.addr)?;
    is_ours(&s)?;
    Ok(s)
}

/// The next unauthenticated peer, when it belongs to our own user.
pub(super) fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    match rustix::net::accept_with(listener, flags) {
        Ok(s) => is_ours(&s).ok().map(|()| s),
        Err(e) => {
            descriptors::note(&e.into());
            None
        }
    }
}

fn is_ours(s: &OwnedFd) -> std::io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(s)?;
    if peer.uid != rustix::process::getuid() {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    Ok(())
}

/// This NIC's hello, without the descriptors.
pub(super) struct Card<'a> {
    pub(super) secret: &'a [u8; 32],
    pub(super) ip: Ipv4Addr,
    pub(super) inline_window: u64,
    pub(super) network: Network,
    /// The link's number here.
    pub(super) link: usize,
    pub(super) exports: &'a [ExportInfo],
}

/// Sends a hello with its descriptors, in one packet.
pub(super) fn send(
    s: &OwnedFd,
    card: &Card<'_>,
    segment: Option<BorrowedFd<'_>>,
    wake: [BorrowedFd<'_>; 2],
    export_fds: &[OwnedFd],
) -> std::io::Result<()> {
    let mut bytes = Vec::with_capacity(MAX_BYTES);
    bytes.extend(MAGIC.to_le_bytes());
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(card.secret);
    bytes.extend(u32::from(card.ip).to_le_bytes());
    bytes.extend((card.exports.len() as u32).to_le_bytes());
    bytes.extend(card.inline_window.to_le_bytes());
    bytes.extend(card.network.id.to_le_bytes());
    bytes.extend(u64::from(card.network.across).to_le_bytes());
    bytes.extend((card.link as u64).to_le_bytes());
    for e in card.exports {
        for v in [e.file_offset, e.bus, e.len] {
            bytes.extend(v.to_le_bytes());
        }
    }
    let mut fds: Vec<BorrowedFd<'_>> = Vec::with_capacity(FIXED_FDS + export_fds.len());
    fds.extend(segment);
    fds.extend(wake);
    fds.extend(export_fds.iter().map(AsFd::as_fd));
    let mut space =
        [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(FIXED_FDS + MAX_EXPORTS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let iov = [IoSlice::new(&bytes)];
    rustix::net::sendmsg(s, &iov, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Sends a NIC of another network the reason why its link ends.
pub(super) fn refuse(s: &OwnedFd) {
    // Without the reason, it still sees the socket close.
    let _ = rustix::net::send(s, &ELSEWHERE, SendFlags::NOSIGNAL);
}

/// Receives a hello. `Ok(None)`: nothing there yet. Any error: drop the peer.
pub(super) fn recv(
    s: &OwnedFd,
    secret: &[u8; 32],
    with_segment: bool,
) -> std::io::Result<Option<Hello>> {
    let mut bytes = [0u8; MAX_BYTES + 1];
    let mut space =
        [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(FIXED_FDS + MAX_EXPORTS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::net::recvmsg(
        s,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    );
    let got = match got {
        Ok(got) => got,
        Err(rustix::io::Errno::AGAIN) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let mut fds = Vec::new();
    for m in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = m {
            fds.extend(rights);
        }
    }
    let bad = |why: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, why);
    let cut = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
    if got.flags.contains(ReturnFlags::CTRUNC) && fds.len() < FIXED_FDS + MAX_EXPORTS {
        // The buffer had room for more: it is this process that had not.
        descriptors::note_cut();
    }
    if bytes[..got.bytes] == ELSEWHERE {
        return Err(elsewhere());
    }
    if got.bytes < HEAD || got.flags.intersects(cut) {
        return Err(bad("not a hello"));
    }
    let word32 = |at: usize| {
        let mut b = [0; 4];
        b.copy_from_slice(&bytes[at..at + 4]);
        u32::from_le_bytes(b)
    };
    let word64 = |at: usize| u64::from(word32(at)) | u64::from(word32(at + 4)) << 32;
    if word32(0) != MAGIC || word32(4) != VERSION {
        return Err(bad("another version of the NIC, or no NIC"));
    }
    // In constant time: the secret must not be guessed byte by byte.
    let differ = bytes[8..40]
        .iter()
        .zip(secret)
        .fold(0, |acc, (a, b)| acc | (a ^ b));
    if differ != 0 {
        return Err(bad("another job's secret"));
    }
    let n = word32(44) as usize;
    let fixed = FIXED_FDS - usize::from(!with_segment);
    let link = usize::try_from(word64(72)).unwrap_or(usize::MAX);
    if link >= MARK_LINKS
        || n > MAX_EXPORTS
        || got.bytes != HEAD + n * EXPORT
        || fds.len() != fixed + n
    {
        return Err(bad("a hello that contradicts itself"));
    }
    let exports = (0..n).map(|i| HEAD + i * EXPORT).map(|at| ExportInfo {
        file_offset: word64(at),
        bus: word64(at + 8),
        len: word64(at + 16),
    });
    let exports = exports.collect();
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or_else(|| bad("a descriptor is missing"));
    let segment = if with_segment { Some(next()?) } else { None };
    let wake = [next()?, next()?];
    Ok(Some(Hello {
        ip: Ipv4Addr::from(word32(40)),
        inline_window: word64(48),
        network: Network {
            id: word64(56),
            across: word64(64) == 1,
        },
        link,
        exports,
        segment,
        wake,
        export_fds: fds.collect(),
    }))
}

/// Why a NIC of another network is not linked.
pub(super) fn elsewhere() -> std::io::Error {
    std::io::Error::new(
        std::io::ErrorKind::HostUnreachable,
        "it is in another network namespace; give both NICs a port, or open both with transport `local`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .expect("socketpair")
    }

    #[test]
    fn the_first_nic_of_a_job_removes_the_directories_of_killed_ones() {
        let base = std::env::temp_dir().join(format!("rb-jobs-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&base);
        std::fs::create_dir(&base).expect("a folder");
        let job = |c: &str| base.join(format!("ringbell-job-{}", c.repeat(32)));
        let join = |c| directory(Some(&job(c))).expect("ours").1;
        let (alive, killed) = (join("a"), join("b"));
        std::fs::write(job("b").join("10.77.0.1.sock"), b"x").expect("written");
        drop(killed);
        let next = join("a");
        assert!(job("b").is_dir(), "a later NIC of a job does not look");
        let other = join("c");
        assert!(job("a").is_dir() && !job("b").exists() && job("c").is_dir());
        drop((alive, next, other));
        let _ = std::fs::remove_dir_all(&base);
    }

    #[test]
    fn malformed_hellos_are_refused() {
        let (a, b) = pair();
        assert!(recv(&b, &[0; 32], true).expect("nothing yet").is_none());
        for junk in [&b"x"[..], &[0u8; 200][..], &[0xff; 5000][..]] {
            rustix::net::send(&a, junk, SendFlags::empty()).expect("send");
            assert!(recv(&b, &[0; 32], true).is_err());
        }
        drop(a);
        assert!(recv(&b, &[0; 32], true).is_err(), "end of file is no hello");
    }

    #[test]
    fn a_hello_arrives_whole_and_another_secret_is_refused() {
        let (a, b) = pair();
        let wake = crate::wake::WakeCell::new().expect("wake cell");
        let exports = [ExportInfo {
            file_offset: 4096,
            bus: 1 << 40,
            len: 8192,
        }];
        let fd = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let card = Card {
            secret: &[7; 32],
            ip: Ipv4Addr::new(10, 1, 2, 3),
            inline_window: 65536,
            network: Network {
                id: 77,
                across: true,
            },
            link: 4711,
            exports: &exports,
        };
        let fds = [fd];
        send(&a, &card, None, wake.fds().expect("memfd"), &fds).expect("send");
        let hello = recv(&b, &[7; 32], false).expect("ok").expect("there");
        assert_eq!(
            (hello.ip, hello.inline_window, hello.link),
            (card.ip, 65536, 4711)
        );
        assert_eq!(
            (hello.exports.as_slice(), hello.network),
            (&exports[..], card.network)
        );
        let far = Card {
            link: MARK_LINKS,
            ..card
        };
        send(&a, &far, None, wake.fds().expect("memfd"), &fds).expect("send");
        assert!(recv(&b, &[7; 32], false).is_err(), "a link without a mark");
        refuse(&a);
        let refused = recv(&b, &[7; 32], false).expect_err("a refusal");
        assert!(refused.to_string().contains("network"), "{refused}");
        assert_eq!(hello.export_fds.len(), 1);
        send(&a, &card, None, wake.fds().expect("memfd"), &fds).expect("send");
        assert!(recv(&b, &[8; 32], false).is_err());
        send(&a, &card, None, wake.fds().expect("memfd"), &fds).expect("send");
        assert!(recv(&b, &[7; 32], true).is_err(), "the segment is missing");
    }
}
