//! Acknowledge extended transport header (IBTA vol. 1 §9.3.5, §9.7.5.2).
//!
//! ```text
//! |  syndrome     |        message sequence number                |
//! ```

use std::time::Duration;

use ringbell_nic_abi::roce::{
    CREDITS_INVALID, SYNDROME_ACK, SYNDROME_KIND, SYNDROME_NAK, SYNDROME_RNR,
};
use ringbell_nic_abi::NakCode;
use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::invalid::Invalid;
use super::join;

/// The header as it lies in a packet.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AethView {
    word: U32,
}

/// Times of an RNR timer by its code, in units of 10 µs (table 45). Code 0 stands for the longest.
const RNR_TIMES: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
    1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// How long a requester waits before it repeats a message for which the receiver was not ready: a
/// code of five bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The low five bits of a code.
    pub const fn new(code: u8) -> RnrTimer {
        RnrTimer(code & 31)
    }
    /// The time that it stands for.
    pub const fn time(self) -> Duration {
        Duration::from_micros(RNR_TIMES[self.0 as usize] as u64 * 10)
    }
}

/// What an acknowledgement says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syndrome {
    /// Everything up to the packet's number has arrived; the receiver has room for so many messages
    /// (a code), or states none.
    Ack {
        /// Code of the credits (§9.7.7.2.4), below 32.
        credits: u8,
    },
    /// The receiver has no buffer for the message.
    ReceiverNotReady(RnrTimer),
    /// The request was refused.
    Nak(NakCode),
}

impl Syndrome {
    /// An acknowledgement that states no credits.
    pub const ACK: Syndrome = Syndrome::Ack {
        credits: CREDITS_INVALID,
    };
}

/// A valid acknowledge header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aeth {
    /// What it says.
    pub syndrome: Syndrome,
    /// How many messages the responder has completed, modulo 2^24.
    pub msn: u32,
}

impl Aeth {
    /// Bytes of the header.
    pub const BYTES: usize = 4;

    /// Reads the header at the start of `bytes`, and returns what follows it.
    ///
    /// # Errors
    /// [`Invalid`]: too short, or a reserved syndrome.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Aeth, &[u8]), Invalid> {
        let (view, rest) = AethView::ref_from_prefix(bytes).map_err(|_| Invalid::Length)?;
        let word = view.word.get();
        let [code, ..] = word.to_be_bytes();
        let low = code & !SYNDROME_KIND;
        let syndrome = match code & SYNDROME_KIND {
            SYNDROME_ACK => Syndrome::Ack { credits: low },
            SYNDROME_RNR => Syndrome::ReceiverNotReady(RnrTimer::new(low)),
            SYNDROME_NAK => Syndrome::Nak(NakCode::from_code(low).ok_or(Invalid::Syndrome)?),
            _ => return Err(Invalid::Syndrome),
        };
        let msn = word & 0x00ff_ffff;
        Ok((Aeth { syndrome, msn }, rest))
    }

    /// The bytes of the header.
    #[inline]
    pub fn bytes(&self) -> [u8; Aeth::BYTES] {
        let code = match self.syndrome {
            Syndrome::Ack { credits } => SYNDROME_ACK | credits & !SYNDROME_KIND,
            Syndrome::ReceiverNotReady(timer) => SYNDROME_RNR | timer.0,
            Syndrome::Nak(code) => SYNDROME_NAK | code.code(),
        };
        join(code, self.msn).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_times_of_table_45() {
        let us = |code| RnrTimer::new(code).time().as_micros();
        assert_eq!(
            [us(0), us(1), us(14), us(31)],
            [655_360, 10, 1_280, 491_520]
        );
    }

    #[test]
    fn every_syndrome_comes_back_or_is_reserved() {
        let reserved = (0..=255u8).filter(|&code| {
            let bytes = [code, 1, 2, 3];
            match Aeth::parse(&bytes) {
                Ok((aeth, _)) => {
                    assert_eq!((aeth.bytes(), aeth.msn), (bytes, 0x010203));
                    false
                }
                Err(e) => {
                    assert_eq!(e, Invalid::Syndrome);
                    true
                }
            }
        });
        // Kinds 2 and 4 to 7, and codes 4 to 31 of a refusal.
        assert_eq!(reserved.count(), 32 * 5 + 28);
    }
}
