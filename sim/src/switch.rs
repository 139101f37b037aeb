//! Switches: the room for frames that wait, marks (ECN) and pauses (PFC).

use crate::random::Random;

/// What a switch does with frames that wait. All sizes are bytes of frames.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Switches {
    /// That wait at an output before it drops what comes.
    pub output_bytes: u64,
    /// Room that the outputs of a switch share.
    pub shared: Option<SharedRoom>,
    /// When frames are marked.
    pub marks: Option<Marks>,
    /// When the sender at the other end of a link is paused.
    pub pauses: Option<Pauses>,
}

/// Room that the outputs of a switch share, by dynamic thresholds (Choudhury and Hahne, "Dynamic
/// Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM ToN 1998).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SharedRoom {
    /// Of all outputs.
    pub bytes: u64,
    /// An output may hold so many times what is free.
    pub alpha: f64,
}

/// Marks of frames whose transport knows ECN (RFC 3168), by the length of the output's queue, as
/// DCQCN's congestion point has them (SIGCOMM 2015, §3.1, figure 5).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Marks {
    /// Bytes up to which none is marked: K_min.
    pub min_bytes: u64,
    /// Bytes from which on all are: K_max.
    pub max_bytes: u64,
    /// Share that is marked shortly before: P_max.
    pub share: f64,
}

/// Pauses of links (IEEE 802.1Qbb, one priority).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pauses {
    /// Bytes of a link's frames in a switch beyond which the link is paused: XOFF.
    pub pause_bytes: u64,
    /// At which it goes on: XON.
    pub resume_bytes: u64,
}

impl Switches {
    /// Outputs of this room, that neither mark nor pause.
    pub fn of_outputs(output_bytes: u64) -> Switches {
        Switches {
            output_bytes,
            shared: None,
            marks: None,
            pauses: None,
        }
    }

    /// Whether there is room for a frame, where so much waits at its output and at the switch.
    pub(crate) fn has_room(&self, frame: u64, output: u64, held: u64) -> bool {
        let fits = |room: &SharedRoom| {
            let free = room.bytes.saturating_sub(held);
            frame <= free && output as f64 <= room.alpha * free as f64
        };
        output + frame <= self.output_bytes && self.shared.as_ref().is_none_or(fits)
    }

    /// Whether a frame is marked where so much waits at its output.
    pub(crate) fn marks(&self, output: u64, random: &mut Random) -> bool {
        let Some(Marks {
            min_bytes,
            max_bytes,
            share,
        }) = self.marks
        else {
            return false;
        };
        if output <= min_bytes || output >= max_bytes {
            return output > min_bytes;
        }
        let part = (output - min_bytes) as f64 / (max_bytes - min_bytes) as f64;
        random.happens(share * part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_holds_its_share_of_what_is_free() {
        let room = Switches {
            shared: Some(SharedRoom {
                bytes: 1_000,
                alpha: 0.5,
            }),
            ..Switches::of_outputs(400)
        };
        // Its own bound, the threshold, and what is left.
        assert!(room.has_room(100, 300, 300) && !room.has_room(101, 300, 300));
        assert!(room.has_room(10, 300, 400) && !room.has_room(10, 300, 401));
        assert!(room.has_room(10, 0, 990) && !room.has_room(10, 0, 991));
        assert!(Switches::of_outputs(400).has_room(400, 0, 1 << 40));
    }

    #[test]
    fn marks_grow_with_the_queue() {
        let switches = Switches {
            marks: Some(Marks {
                min_bytes: 1_000,
                max_bytes: 3_000,
                share: 0.5,
            }),
            ..Switches::of_outputs(1 << 20)
        };
        let mut random = Random(7);
        let mut marked = |output| {
            (0..10_000)
                .filter(|_| switches.marks(output, &mut random))
                .count()
        };
        assert_eq!((marked(1_000), marked(3_000)), (0, 10_000));
        assert!((2_300..2_700).contains(&marked(2_000)));
        assert!((4_500..5_100).contains(&marked(2_950)));
        let mut random = Random(7);
        assert!(!Switches::of_outputs(1).marks(u64::MAX, &mut random));
    }
}
