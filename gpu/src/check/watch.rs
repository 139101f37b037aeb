//! A launch under checks, and what was found wrong in it.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};

use crate::code::Kernel;
use crate::code::Shape;
use crate::module::Site;

/// Findings of a launch that are kept in words.
const MOST: usize = 20;

/// A place of a kernel in words.
type Describe = Box<dyn Fn(Site) -> String + Send + Sync>;

/// One launch, as [`Checker::launch`](super::Checker::launch) makes it. Its blocks hold it.
pub struct Watch {
    kernel: Arc<Kernel>,
    shape: Shape,
    describe: Describe,
    found: Mutex<Found>,
    /// Its number among the launches of the trace, while it runs.
    pub(super) run: AtomicU32,
}

#[derive(Default)]
struct Found {
    /// Each pair of places is told once.
    known: HashSet<(&'static str, Site, Option<Site>)>,
    texts: Vec<String>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({})", self.kernel())
    }
}

impl Watch {
    pub(super) fn new(kernel: Arc<Kernel>, shape: Shape, describe: Describe) -> Watch {
        Watch {
            kernel,
            shape,
            describe,
            found: Mutex::default(),
            run: AtomicU32::new(u32::MAX),
        }
    }

    /// The kernel's name.
    pub fn kernel(&self) -> &str {
        &self.kernel.name
    }

    /// What was found up to now, in words, each with its check and place.
    pub fn findings(&self) -> Vec<String> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let mut texts = found.texts.clone();
        if let Some(more) = found.known.len().checked_sub(MOST).filter(|n| *n > 0) {
            texts.push(format!("and {more} more"));
        }
        texts
    }

    pub(crate) fn describe(&self, site: Site) -> String {
        (self.describe)(site)
    }

    /// A place by its number among the kernel's.
    pub(crate) fn site(&self, number: u32) -> Site {
        let site = self.kernel.sites.get(number as usize).copied();
        site.unwrap_or(Site::NOWHERE)
    }

    /// The index of a thread by its number in its block.
    pub(crate) fn thread(&self, number: u32) -> [u32; 3] {
        let [x, y, _] = self.shape.block;
        [number % x, number / x % y, number / (x * y)]
    }

    /// Its number among the launches of the trace.
    pub(crate) fn run(&self) -> u32 {
        self.run.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Tells of what was found at a place, or at two; `text` is asked for if it is new.
    pub(crate) fn found(
        &self,
        check: &'static str,
        sites: (Site, Option<Site>),
        text: impl FnOnce() -> String,
    ) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.known.insert((check, sites.0, sites.1)) && found.texts.len() < MOST {
            found.texts.push(format!("{check}: {}", text()));
        }
    }
}

/// A thread of a grid in words.
pub(crate) fn thread(block: [u32; 3], thread: [u32; 3]) -> String {
    let [bx, by, bz] = block;
    let [tx, ty, tz] = thread;
    format!("block ({bx},{by},{bz}), thread ({tx},{ty},{tz})")
}
