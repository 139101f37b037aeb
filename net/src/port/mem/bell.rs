//! Wake-up of a sleeping port's owner when a frame comes.
//!
//! Each port binds a Unix datagram socket whose abstract name follows from a random number in the
//! segment, so that any process with the segment can ring, however the descriptor reached it. A
//! reader that has received nothing for a while sets its `armed` word and polls once more; a sender
//! that finds the word set clears it and sends one byte. So frames between NICs that are awake cost
//! no system call.
//!
//! **Limits.** Abstract names belong to a network namespace: between two of them, or where the name
//! cannot be bound, the port is polled in bounded naps instead. A process of the same namespace
//! that reads the name can ring as well, which wakes a NIC for nothing; one that has the segment
//! can clear the word and let a NIC sleep through a frame, as it can overwrite the frame itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    bind, recv, sendto, socket_with, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// The bell of one port, and the way to the others'.
#[derive(Debug)]
pub(super) struct Bell {
    socket: OwnedFd,
    /// By ring, in order of port number without the own.
    others: Vec<SocketAddrUnix>,
}

fn name(id: [u64; 2], port: usize) -> Result<SocketAddrUnix, rustix::io::Errno> {
    let name = format!("ringbell-mem-{:016x}{:016x}-{port}", id[0], id[1]);
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

impl Bell {
    /// The bell of port `me`; `None` where its name cannot be had.
    pub(super) fn new(id: [u64; 2], me: usize, ports: usize) -> Option<Bell> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let made = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).and_then(|s| {
            bind(&s, &name(id, me)?)?;
            let others = (0..ports).filter(|&p| p != me).map(|p| name(id, p));
            Ok(Bell {
                socket: s,
                others: others.collect::<Result<_, _>>()?,
            })
        });
        match made {
            Ok(bell) => Some(bell),
            Err(e) => {
                tracing::debug!(
                    port = me,
                    "no wake-up by descriptor ({e}); the rings are looked at in naps"
                );
                None
            }
        }
    }

    /// Rings for the owner of the other end of a ring. One that is gone, or has not read the last
    /// byte yet, needs none.
    pub(super) fn ring(&self, other: usize) {
        if let Some(to) = self.others.get(other) {
            let _ = sendto(&self.socket, &[1], SendFlags::DONTWAIT, to);
        }
    }

    /// Reads wake-up bytes, bounded so that a process that rings without reason costs little at a
    /// time.
    pub(super) fn drain(&self) {
        for _ in 0..16 {
            let mut byte = [0u8; 1];
            if recv(&self.socket, &mut byte[..], RecvFlags::DONTWAIT).is_err() {
                break;
            }
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
