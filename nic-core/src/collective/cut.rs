//! Segmentation of an operation into segments or windows, and how many of them are under way at
//! once.
//!
//! Every rank computes the same: settings and parameters are equal, and the slots are those of the
//! rank that needs most.

use ringbell_onc_engines::program::Layout;

use super::executor::MAX_SEGMENTS;
use super::CollectiveSettings;

/// A slot is a whole number of these.
const UNIT: u64 = 64;

/// See the module text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) segments: u64,
    /// In the order of a stream: windows of each chunk.
    pub(super) windows: Option<u64>,
    /// Bytes of a slot of NIC memory.
    pub(super) slot_bytes: u64,
    /// Segments that there is NIC memory for.
    pub(super) in_flight: u64,
}

/// A setting with which an operation cannot run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the setting `{setting}` is {is} bytes, and this operation needs at least {needed}: raise it on every rank, or choose another algorithm")]
pub(super) struct Short {
    pub(super) setting: &'static str,
    pub(super) is: u64,
    pub(super) needed: u64,
}

impl Cut {
    /// `slots` of NIC memory are needed for each segment. `streamed`: in the order of a stream, in
    /// which so many blocks follow each other.
    pub(super) fn of(
        s: &CollectiveSettings,
        layout: &Layout,
        size: u64,
        slots: u64,
        streamed: Option<u32>,
    ) -> Result<Cut, Short> {
        let longest = layout.longest() * size;
        if longest == 0 {
            // Without elements the ranks must still synchronise.
            return Ok(Cut {
                segments: 1,
                windows: streamed.map(|_| 1),
                slot_bytes: 0,
                in_flight: 1,
            });
        }
        let short = |setting, is, needed| {
            Err(Short {
                setting,
                is,
                needed,
            })
        };
        let scratch = s.scratch_bytes;
        let bytes = |parts: u64| (layout.longest().div_ceil(parts) * size).next_multiple_of(UNIT);
        let most_in_flight = u64::from(s.segments_in_flight);
        if let Some(blocks) = streamed {
            let parts = longest.div_ceil(s.stream_bytes).max(1);
            let chunks = u64::from(layout.block_chunks.max(1)) * u64::from(blocks.max(1));
            let segments = parts * chunks;
            if segments > MAX_SEGMENTS {
                let windows = MAX_SEGMENTS / chunks;
                let needed = longest.div_ceil(windows.max(1)).next_power_of_two();
                return short("stream_bytes", s.stream_bytes, needed);
            }
            // A window of source and of destination, too.
            let each = (slots + 2) * bytes(parts);
            if each > scratch {
                return short("scratch_bytes", scratch, each);
            }
            return Ok(Cut {
                segments,
                windows: Some(parts),
                slot_bytes: bytes(parts),
                in_flight: most_in_flight,
            });
        }
        // The shortest slots with which there are not too many segments.
        let least = longest.div_ceil(MAX_SEGMENTS).next_multiple_of(UNIT);
        if s.segment_bytes < least {
            return short("segment_bytes", s.segment_bytes, least);
        }
        // Fewer at once where NIC memory is scarce.
        let in_flight = most_in_flight.min(scratch / (slots * least));
        if in_flight == 0 {
            return short("scratch_bytes", scratch, slots * least);
        }
        let most = (scratch / (in_flight * slots) / UNIT * UNIT).min(s.segment_bytes);
        let segments = longest.div_ceil(most);
        Ok(Cut {
            segments,
            windows: None,
            slot_bytes: bytes(segments),
            in_flight,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(s: &CollectiveSettings, count: u64, slots: u64, streamed: bool) -> Result<Cut, Short> {
        let layout = Layout {
            count,
            block_chunks: 4,
        };
        Cut::of(s, &layout, 4, slots, streamed.then_some(3))
    }

    #[test]
    fn the_named_settings_are_sufficient() {
        for (segment, scratch, count, slots, streamed) in [
            (64, 128, 100, 1000, false),
            (4096, 65536, 1 << 20, 1025, false),
            (64, 1 << 20, 1 << 27, 3, false),
            (1 << 20, 1 << 21, 1 << 30, 40_000, false),
            (64, 128, 100, 9, true),
            (64, 1 << 24, 1 << 28, 3, true),
        ] {
            let mut s = CollectiveSettings {
                segment_bytes: segment,
                scratch_bytes: scratch,
                stream_bytes: 64,
                ..CollectiveSettings::default()
            };
            let mut named = Vec::new();
            let cut = loop {
                match cut(&s, count, slots, streamed) {
                    Ok(cut) => break cut,
                    Err(short) => {
                        assert!(short.needed > short.is, "{short}");
                        s.set(short.setting, short.needed).expect("its name");
                        assert!(!named.contains(&short.setting), "{short}, again");
                        named.push(short.setting);
                    }
                }
            };
            assert!(!named.is_empty(), "{segment} {scratch} {count} {slots}");
            let windows = if streamed { 2 } else { 0 };
            assert!(
                (slots + windows) * cut.slot_bytes <= s.scratch_bytes,
                "{cut:?}"
            );
            assert!(cut.segments <= MAX_SEGMENTS, "{cut:?}");
        }
    }

    #[test]
    fn segments_share_nic_memory_and_scarce_memory_lowers_their_number() {
        let s = CollectiveSettings {
            segment_bytes: 4096,
            scratch_bytes: 65536,
            ..CollectiveSettings::default()
        };
        let got = cut(&s, 1 << 16, 4, false).expect("room");
        assert_eq!((got.in_flight, got.segments, got.slot_bytes), (4, 16, 4096));
        let got = cut(&s, 1 << 16, 400, false).expect("room for two");
        assert_eq!((got.in_flight, got.slot_bytes), (2, 64));
        let got = cut(&s, 0, 5000, false).expect("nothing needs nothing");
        assert_eq!(got.slot_bytes, 0);
    }
}
