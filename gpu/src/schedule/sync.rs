//! `synccheck`: barriers and operations of warps that the ISA leaves undefined (§9.7.13.1,
//! §9.7.13.2, §9.7.9.6).

use std::fmt::Write;

use crate::check::{thread, Watch};
use crate::context::{Thread, ALIGNED};
use crate::module::Site;

/// The name by which findings call it.
const NAME: &str = "synccheck";

/// A block, for its findings.
pub(crate) struct Place<'a> {
    pub(crate) watch: &'a Watch,
    pub(crate) block: [u32; 3],
    pub(crate) sites: &'a [Site],
}

impl Place<'_> {
    fn site(&self, t: &Thread) -> Site {
        let site = self.sites.get(t.site as usize).copied();
        site.unwrap_or(Site::NOWHERE)
    }

    fn found(&self, t: &Thread, other: Option<&Thread>, what: impl FnOnce() -> String) {
        let site = self.site(t);
        self.watch
            .found(NAME, (site, other.map(|o| self.site(o))), || {
                let place = self.watch.describe(site);
                let mut text = format!("{}, {place}: {}", thread(self.block, t.tid), what());
                if let Some(o) = other {
                    let place = self.watch.describe(self.site(o));
                    // Writing to a string cannot fail.
                    let _ = write!(text, "; {}, is at {place}", thread(self.block, o.tid));
                }
                text
            });
    }

    /// A barrier that opens: the threads at it, and how many of the block's have ended.
    pub(crate) fn barrier<'t>(&self, here: impl Iterator<Item = (usize, &'t Thread)>, ended: u32) {
        let mut first: Option<&Thread> = None;
        let mut lane: Option<(usize, &Thread)> = None;
        for (i, t) in here {
            let one = *first.get_or_insert(t);
            if t.c != one.c {
                let what = || {
                    format!(
                        "a barrier of {} threads, at which others wait for {}",
                        t.c, one.c
                    )
                };
                self.found(t, Some(one), what);
            }
            if t.c % 32 != 0 {
                self.found(t, None, || {
                    format!("a barrier of {} threads, which is no multiple of 32", t.c)
                });
            }
            // Lanes of a warp come to an aligned barrier by one instruction.
            let of_warp = lane.filter(|(o, _)| o / 32 == i / 32);
            if let Some((_, o)) = of_warp {
                let aligned = (t.kind | o.kind) & ALIGNED != 0;
                if aligned && self.site(t).line != self.site(o).line {
                    self.found(t, Some(o), || {
                        "a barrier at which lanes of one warp are at different instructions"
                            .to_owned()
                    });
                }
            }
            lane = of_warp.or(Some((i, t)));
        }
        if let Some(t) = first.filter(|t| t.c == 0 && ended > 0) {
            self.found(t, None, || {
                format!("a barrier of all threads of the block, of which {ended} have ended")
            });
        }
    }

    /// A thread that comes to a warp operation.
    pub(crate) fn arrives(&self, t: &Thread) {
        if t.mask >> t.lane & 1 == 0 {
            self.found(t, None, || {
                format!(
                    "a warp operation of mask {:#x}, which lacks the thread's own lane, {}",
                    t.mask, t.lane
                )
            });
        }
    }

    /// A lane that takes another's value, which gives none.
    pub(crate) fn silent(&self, t: &Thread, from: u32) {
        let ended = t.mask >> from & 1 == 1;
        self.found(t, None, || match ended {
            true => format!("a value of lane {from}, whose thread has ended"),
            false => format!(
                "a value of lane {from}, which is not in the mask {:#x}",
                t.mask
            ),
        });
    }
}
