//! The wake cell, by which threads of its process and peers wake a sleeping NIC.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rustix::event::EventfdFlags;

use crate::marks;
use crate::shmem::Mapping;

/// Wake-up of a NIC: a word in memory that peers can map, and a descriptor that they can write.
#[derive(Debug)]
pub(crate) struct WakeCell {
    page: Mapping,
    event: OwnedFd,
    /// A transport's descriptor has ended a sleep of the owner, and the transport has not looked at
    /// it since.
    called: AtomicBool,
}

/// Device and inode of a file: no two files have the same while both are open.
type FileId = (u64, u64);

/// The cells of this process's NICs. Only cells made here get in, so that no peer can put its own
/// descriptor in the place of another NIC's.
static OWN: Mutex<BTreeMap<FileId, Weak<WakeCell>>> = Mutex::new(BTreeMap::new());

fn file_of(fd: BorrowedFd<'_>) -> std::io::Result<FileId> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Offset of the `parked` word.
const PARKED: usize = 0;
/// Offset of the word that asks peers for marks.
const MARKED: usize = 4;
/// Offset of the marks: a bit for each link of the owner.
const MARKS: usize = 64;
/// Words of marks.
const MARK_WORDS: usize = (WAKE_BYTES - MARKS) / 8;
/// Links that can be marked.
pub(crate) const MARK_LINKS: usize = MARK_WORDS * 64;
/// Bytes of a wake page.
pub(crate) const WAKE_BYTES: usize = 4096;

impl WakeCell {
    pub(crate) fn new() -> std::io::Result<Arc<WakeCell>> {
        let page = Mapping::memfd("ringbell-wake", WAKE_BYTES)?;
        let file = page.fd().map(file_of).transpose()?;
        let cell = Arc::new(WakeCell {
            page,
            event: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            called: AtomicBool::new(false),
        });
        if let (Some(file), Ok(mut own)) = (file, OWN.lock()) {
            own.retain(|_, c| c.strong_count() > 0);
            own.insert(file, Arc::downgrade(&cell));
        }
        Ok(cell)
    }

    /// The cell of a peer, from the descriptors it has sent. That of a NIC of this process is the
    /// very same, and costs neither a descriptor nor a mapping.
    pub(crate) fn of_peer(page: OwnedFd, event: OwnedFd) -> std::io::Result<Arc<WakeCell>> {
        let file = file_of(page.as_fd())?;
        if let Some(own) = OWN.lock().ok().and_then(|o| o.get(&file)?.upgrade()) {
            return Ok(own);
        }
        // A blocking descriptor would let a peer stop us in `write`.
        rustix::fs::fcntl_setfl(&event, rustix::fs::OFlags::NONBLOCK)?;
        let mut page = Mapping::of_peer(page, 0, WAKE_BYTES, true)?;
        page.forget_fd();
        Ok(Arc::new(WakeCell {
            page,
            event,
            called: AtomicBool::new(false),
        }))
    }

    /// The page and the event descriptor, to be sent to a peer.
    pub(crate) fn fds(&self) -> Option<[BorrowedFd<'_>; 2]> {
        Some([self.page.fd()?, self.event.as_fd()])
    }

    /// What becomes readable when the NIC is woken.
    pub(crate) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// The word that shows whether a thread sleeps.
    pub(crate) fn parked(&self) -> &AtomicU32 {
        &self.page.words32(PARKED, 1)[0]
    }

    /// The marks of the owner's links.
    pub(crate) fn marks(&self) -> &[AtomicU64] {
        self.page.words64(MARKS, MARK_WORDS)
    }

    /// From now on peers mark the links to which they write. What was written before may have no
    /// mark, and is seen by a look that follows this call.
    pub(crate) fn ask_for_marks(&self) {
        self.page.words32(MARKED, 1)[0].store(1, Ordering::Relaxed);
        // SeqCst: the look that follows sees the lines of a peer that has not seen the word; pairs
        // with the fence in `announce`.
        fence(Ordering::SeqCst);
    }

    /// Lines were written to the ring of one of the owner's links: marks it where the owner asks
    /// for marks, and wakes the owner if it sleeps.
    #[inline]
    pub(crate) fn announce(&self, link: usize) {
        // SeqCst: orders what was written to the ring before the looks at `MARKED`, the marks, and
        // `parked`; pairs with the fences in `ask_for_marks`, `take` and `Progress::lead`.
        fence(Ordering::SeqCst);
        if self.page.words32(MARKED, 1)[0].load(Ordering::Relaxed) != 0 {
            marks::set(self.marks(), link);
        }
        self.wake_sleeper();
    }

    /// Wakes the owner if it sleeps. Returns whether that took a system call.
    pub(crate) fn poke(&self) -> bool {
        // SeqCst: orders what was written to the rings before the look at `parked`; pairs with the
        // fence in `Progress::lead`.
        fence(Ordering::SeqCst);
        self.wake_sleeper()
    }

    #[inline]
    fn wake_sleeper(&self) -> bool {
        if self.parked().load(Ordering::Relaxed) == 0
            || self.parked().swap(0, Ordering::Relaxed) == 0
        {
            return false;
        }
        self.signal();
        true
    }

    /// Peers need not wake the owner any more.
    #[inline]
    pub(crate) fn stand_down(&self) {
        if self.parked().load(Ordering::Relaxed) != 0 {
            self.parked().store(0, Ordering::Relaxed);
        }
    }

    /// Makes the descriptor readable.
    pub(crate) fn signal(&self) {
        // A full counter is readable as well: nothing is lost when the write would block.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// A descriptor of the owner's transports is readable.
    pub(crate) fn set_called(&self) {
        // Relaxed: the step that follows takes the NIC's lock.
        self.called.store(true, Ordering::Relaxed);
    }

    /// Whether a transport is to look at its descriptor although it has done so just now. The sleep
    /// would end at once again.
    #[inline]
    pub(crate) fn take_called(&self) -> bool {
        // A load first: nearly always there is nothing to store.
        self.called.load(Ordering::Relaxed) && self.called.swap(false, Ordering::Relaxed)
    }

    /// Takes what made the descriptor readable.
    pub(crate) fn drain(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }
}
