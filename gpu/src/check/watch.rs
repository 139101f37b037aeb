//! A launch under checks, and what was found wrong in it.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::module::Site;

/// Findings of a launch that are kept in words.
const MOST: usize = 20;

/// A place of a kernel in words.
type Describe = Box<dyn Fn(Site) -> String + Send + Sync>;

/// One launch. Its blocks hold it, and accesses that are remembered do.
pub struct Watch {
    kernel: String,
    describe: Describe,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    /// Each pair of places is told once.
    known: HashSet<(&'static str, Site, Option<Site>)>,
    texts: Vec<String>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({})", self.kernel)
    }
}

impl Watch {
    /// Of a kernel, with a function that says in words where a place is.
    pub fn new(kernel: &str, describe: impl Fn(Site) -> String + Send + Sync + 'static) -> Watch {
        Watch {
            kernel: kernel.to_owned(),
            describe: Box::new(describe),
            found: Mutex::default(),
        }
    }

    /// The kernel's name.
    pub fn kernel(&self) -> &str {
        &self.kernel
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
