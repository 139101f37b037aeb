//! The 64-byte work queue entry, self-validating.
//!
//! Eight 64-bit words; bit 63 of *each* is the lap bit: the parity of the lap of the ring in which
//! the entry was written (1 in the first lap, so that zeroed memory is never valid). A consumer
//! that sees the lap's parity in a word sees that word's other 63 bits from the same store, so any
//! store width from 8 bytes up validates itself and no slot is cleared after use. The bits 63 that
//! a payload or a wide operand needs travel in word 7.
//!
//! The NIC copies an entry once ([`WorkQueueEntry`]) and decodes the copy: a hostile kernel may
//! rewrite the slot meanwhile.

use crate::{bit_fields, Flags, GpuVa, Lkey, Opcode, Rkey, SessionId};

/// First address of the NIC's own memory: the last TiB of the 57-bit space. Descriptors name
/// addresses from here on like any others, but a kernel cannot read them, so payload there never
/// travels inside.
pub const NIC_VA: u64 = (1 << 57) - (1 << 40);

/// Bytes of payload an inline `SEND` carries: words 1–5.
pub const INLINE_MAX: usize = 40;

/// Bytes of payload that an inline `PUT` carries: word 1. The words behind it have the address and
/// the signal.
pub const PUT_INLINE_MAX: usize = 8;

/// Bytes of one entry, and the stride of the send queue.
pub const DESCRIPTOR_BYTES: usize = 64;

/// The lap bit of every word.
pub const LAP: u64 = 1 << 63;

bit_fields! { DESCRIPTOR_FIELDS:
    /// Operation code.
    W_OPCODE = word 0 [0 +: 8] => "WQE_OPCODE";
    /// Flag bits.
    W_FLAGS = word 0 [8 +: 8] => "WQE_FLAGS";
    /// Length of the inline payload in bytes, 0 to 40.
    W_INLINE_LEN = word 0 [16 +: 8] => "WQE_INLINE_LEN";
    /// Session that the operation works on.
    W_SESSION = word 0 [32 +: 24] => "WQE_SESSION";
    /// Local GPU virtual address (bit 63 in word 7).
    W_LOCAL_VA = word 1 [0 +: 64] => "WQE_LOCAL_VA";
    /// Length in bytes, up to 4 GiB - 1.
    W_LEN = word 2 [0 +: 32] => "WQE_LEN";
    /// Local key; 0: find the region by address (bit 63 in word 7).
    W_LKEY = word 2 [32 +: 32] => "WQE_LKEY";
    /// Remote, or second local, virtual address (bit 63 in word 7).
    W_REMOTE_VA = word 3 [0 +: 64] => "WQE_REMOTE_VA";
    /// Immediate: port, backlog, tag or burst size.
    W_IMM = word 4 [0 +: 32] => "WQE_IMM";
    /// Remote key (bit 63 in word 7).
    W_RKEY = word 4 [32 +: 32] => "WQE_RKEY";
    /// Operand: IPv4 address, or the operand of an atomic (bit 63 in word 7).
    W_OPERAND = word 5 [0 +: 64] => "WQE_OPERAND";
    /// The caller's own number, returned in the completion (bit 63 in word 7).
    W_WR_ID = word 6 [0 +: 64] => "WQE_WR_ID";
    /// Bits 63 of words 0 to 6, in order.
    W_SAVED = word 7 [0 +: 7] => "WQE_SAVED";
    /// Deadline in microseconds from the moment the NIC first sees the entry; 0: the NIC's default.
    W_TIMEOUT_US = word 7 [8 +: 32] => "WQE_TIMEOUT_US";
}

/// Bits of word 0 and word 7 that must be zero.
const RESERVED_0: u64 =
    !(W_OPCODE.mask() | W_FLAGS.mask() | W_INLINE_LEN.mask() | W_SESSION.mask() | LAP);
const RESERVED_7: u64 = !(W_SAVED.mask() | W_TIMEOUT_US.mask() | LAP);

/// An entry as it lies in memory, lap bits included: eight words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, align(64))]
pub struct WorkQueueEntry(pub [u64; 8]);

/// A decoded, checked entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Operation.
    pub opcode: Opcode,
    /// Modifiers; only known bits.
    pub flags: Flags,
    /// Session the operation works on; 0 where it needs none.
    pub session: SessionId,
    /// Inline payload length in bytes; 0 unless `flags` has INLINE.
    pub inline_len: u8,
    /// Inline payload, valid up to `inline_len`.
    pub inline: [u8; INLINE_MAX],
    /// Local buffer.
    pub local_va: GpuVa,
    /// Length in bytes.
    pub len: u32,
    /// Local key; 0: by address.
    pub lkey: Lkey,
    /// Remote or second local address.
    pub remote_va: GpuVa,
    /// Remote key.
    pub rkey: Rkey,
    /// Immediate.
    pub imm: u32,
    /// Operand.
    pub operand: u64,
    /// The caller's number.
    pub wr_id: u64,
    /// Deadline in µs; 0: the NIC's default.
    pub timeout_us: u32,
}

/// What an entry is, as far as there is a short decoder for it: the operations that are posted
/// most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// `NOP`.
    Nop,
    /// `SEND` with the payload inside.
    InlineSend,
    /// `SEND` from memory.
    Send,
    /// `RECV`.
    Receive,
    /// Any other, malformed ones included.
    Other,
}

/// The commonest small message, an inline `SEND`, as far as its fast path needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InlineSend {
    /// Session that it is sent on.
    pub session: SessionId,
    /// Bytes of payload, 0 to 40.
    pub len: u8,
    /// The payload, little-endian; bytes beyond `len` are undefined.
    pub words: [u64; INLINE_MAX / 8],
}

/// A `RECV`, or a `SEND` from memory, as far as its fast path needs it; fields as in
/// [`Descriptor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Session of the stream.
    pub session: SessionId,
    /// Modifiers; only known bits.
    pub flags: Flags,
    /// Where the bytes go, or are.
    pub local_va: GpuVa,
    /// Bytes.
    pub len: u32,
    /// Local key; 0: by address.
    pub lkey: Lkey,
    /// Deadline in µs; 0: the NIC's default.
    pub timeout_us: u32,
}

/// Why an entry was refused; both carry what the completion's `detail` reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorError {
    /// The opcode is not defined.
    UnknownOpcode(u8),
    /// A reserved bit is set or a field is out of range, in this word.
    Malformed {
        /// Index of the word at fault, 0–7.
        word: u8,
    },
}

impl DescriptorError {
    /// Index of the word at fault.
    pub const fn word(self) -> u8 {
        match self {
            DescriptorError::UnknownOpcode(_) => 0,
            DescriptorError::Malformed { word } => word,
        }
    }
}

/// The lap bit of ring index `ticket` in a ring of `depth` entries (a power of two): 1 in even
/// laps.
#[inline]
pub const fn lap_bit(ticket: u32, depth_log2: u32) -> u64 {
    if (ticket >> depth_log2) & 1 == 0 {
        LAP
    } else {
        0
    }
}

impl Descriptor {
    /// A descriptor of `opcode` with every other field zero.
    pub const fn new(opcode: Opcode) -> Descriptor {
        Descriptor {
            opcode,
            flags: Flags(0),
            session: SessionId(0),
            inline_len: 0,
            inline: [0; INLINE_MAX],
            local_va: GpuVa(0),
            len: 0,
            lkey: Lkey(0),
            remote_va: GpuVa(0),
            rkey: Rkey(0),
            imm: 0,
            operand: 0,
            wr_id: 0,
            timeout_us: 0,
        }
    }

    /// The entry for this descriptor with the given lap bit ([`LAP`] or 0) in each word.
    #[inline]
    pub fn encode(&self, lap: u64) -> WorkQueueEntry {
        let mut w = [0u64; 8];
        w[0] = W_OPCODE.put(self.opcode.code() as u64)
            | W_FLAGS.put(self.flags.0 as u64)
            | W_INLINE_LEN.put(self.inline_len as u64)
            | W_SESSION.put(self.session.0 as u64);
        let inline = self.flags.contains(Flags::INLINE);
        if inline {
            for (i, chunk) in self.inline.chunks_exact(8).enumerate() {
                let mut b = [0u8; 8];
                b.copy_from_slice(chunk);
                w[1 + i] = u64::from_le_bytes(b);
            }
        } else {
            w[1] = self.local_va.0;
        }
        if !inline || self.opcode.is_one_sided() {
            w[2] = W_LEN.put(self.len as u64) | W_LKEY.put(self.lkey.0 as u64);
            w[3] = self.remote_va.0;
            w[4] = W_IMM.put(self.imm as u64) | W_RKEY.put(self.rkey.0 as u64);
            w[5] = self.operand;
        }
        w[6] = self.wr_id;
        w[7] = W_TIMEOUT_US.put(self.timeout_us as u64);
        if (w[0] | w[1] | w[2] | w[3] | w[4] | w[5] | w[6]) & LAP != 0 {
            for i in 0..7 {
                w[7] |= (w[i] >> 63) << i;
                w[i] &= !LAP;
            }
        }
        WorkQueueEntry(w.map(|word| word | lap))
    }
}

impl WorkQueueEntry {
    /// Whether all eight words carry `lap`: the entry is whole and belongs to that lap.
    #[inline]
    pub const fn is_valid(&self, lap: u64) -> bool {
        let w = &self.0;
        match lap {
            0 => (w[0] | w[1] | w[2] | w[3] | w[4] | w[5] | w[6] | w[7]) & LAP == 0,
            _ => (w[0] & w[1] & w[2] & w[3] & w[4] & w[5] & w[6] & w[7]) & LAP != 0,
        }
    }

    /// The caller's number, also when the rest is malformed, so that the failure can be reported.
    #[inline]
    pub const fn wr_id(&self) -> u64 {
        (self.0[6] & !LAP) | ((self.0[7] >> 6) & 1) << 63
    }

    /// What stands where a descriptor has `local_va`, `len` and `remote_va`, also when the rest is
    /// malformed.
    pub const fn operands(&self) -> (GpuVa, u32, GpuVa) {
        let w = &self.0;
        let saved = W_SAVED.of(w[7]);
        let local = (w[1] & !LAP) | ((saved >> 1) & 1) << 63;
        let remote = (w[3] & !LAP) | ((saved >> 3) & 1) << 63;
        (GpuVa(local), W_LEN.of(w[2]) as u32, GpuVa(remote))
    }

    /// What the entry is, as far as there is a short decoder for it.
    ///
    /// Agrees with [`decode`](WorkQueueEntry::decode), and costs a tenth of it.
    #[inline]
    pub const fn kind(&self) -> EntryKind {
        const INLINE: u64 = W_FLAGS.put(Flags::INLINE.0 as u64);
        const INLINE_SEND: u64 = Opcode::Send as u64 | INLINE;
        const SEND: u64 = Opcode::Send as u64;
        const RECEIVE: u64 = Opcode::Recv as u64;
        const NOP: u64 = Opcode::Nop as u64;
        const BAD_0: u64 = (RESERVED_0 & !LAP) | W_FLAGS.put(!Flags::of(Opcode::Send).0 as u64);
        // The first saved bit belongs to word 0, of which bit 63 is reserved.
        const BAD_7: u64 = RESERVED_7 | W_SAVED.put(1);
        let w = &self.0;
        if (w[0] & BAD_0) | (w[7] & BAD_7) != 0 {
            return EntryKind::Other;
        }
        let len = W_INLINE_LEN.of(w[0]);
        match w[0] & (W_OPCODE.mask() | INLINE) {
            INLINE_SEND if len <= INLINE_MAX as u64 => EntryKind::InlineSend,
            SEND if len == 0 => EntryKind::Send,
            RECEIVE if len == 0 => EntryKind::Receive,
            NOP if len == 0 => EntryKind::Nop,
            _ => EntryKind::Other,
        }
    }

    /// The entry as an inline `SEND`, which it must be by its [kind](WorkQueueEntry::kind).
    #[inline(always)]
    pub const fn inline_send(&self) -> InlineSend {
        let w = &self.0;
        let saved = W_SAVED.of(w[7]);
        let mut words = [
            w[1] & !LAP,
            w[2] & !LAP,
            w[3] & !LAP,
            w[4] & !LAP,
            w[5] & !LAP,
        ];
        if saved != 0 {
            let mut i = 0;
            while i < words.len() {
                words[i] |= ((saved >> (1 + i)) & 1) << 63;
                i += 1;
            }
        }
        InlineSend {
            session: self.session(),
            len: W_INLINE_LEN.of(w[0]) as u8,
            words,
        }
    }

    /// The session of an entry that is not malformed.
    #[inline]
    pub const fn session(&self) -> SessionId {
        SessionId(W_SESSION.of(self.0[0]) as u32)
    }

    /// The entry as a `RECV`, or a `SEND` from memory, which it must be by its
    /// [kind](WorkQueueEntry::kind).
    #[inline(always)]
    pub const fn transfer(&self) -> Transfer {
        let w = &self.0;
        let saved = W_SAVED.of(w[7]);
        let size = (w[2] & !LAP) | ((saved >> 2) & 1) << 63;
        Transfer {
            session: self.session(),
            flags: Flags(W_FLAGS.of(w[0]) as u8),
            local_va: GpuVa((w[1] & !LAP) | ((saved >> 1) & 1) << 63),
            len: W_LEN.of(size) as u32,
            lkey: Lkey(W_LKEY.of(size) as u32),
            timeout_us: W_TIMEOUT_US.of(w[7]) as u32,
        }
    }

    /// Decodes a copied entry.
    ///
    /// # Errors
    /// [`DescriptorError`] names the word at fault.
    // Inlined, so that a descriptor is written where it is used.
    #[inline(always)]
    pub fn decode(&self) -> Result<Descriptor, DescriptorError> {
        let mut w = self.0;
        let saved = W_SAVED.of(w[7]);
        for word in w.iter_mut().take(7) {
            *word &= !LAP;
        }
        if saved != 0 {
            for (i, word) in w.iter_mut().enumerate().take(7) {
                *word |= ((saved >> i) & 1) << 63;
            }
        }
        let code = W_OPCODE.of(w[0]) as u8;
        let opcode = Opcode::from_code(code).ok_or(DescriptorError::UnknownOpcode(code))?;
        let flags = Flags(W_FLAGS.of(w[0]) as u8);
        let inline_len = W_INLINE_LEN.of(w[0]) as u8;
        let inline_ok = match (flags.contains(Flags::INLINE), opcode) {
            (true, Opcode::Send) => inline_len as usize <= INLINE_MAX,
            (true, Opcode::Put) => inline_len as usize <= PUT_INLINE_MAX,
            (true, _) => false,
            (false, _) => inline_len == 0,
        };
        let set_alone = flags.contains(Flags::SIGNAL_SET) && !flags.contains(Flags::SIGNAL);
        let flags_ok = flags.0 & !Flags::of(opcode).0 == 0 && !set_alone;
        if w[0] & (RESERVED_0 | LAP) != 0 || !flags_ok || !inline_ok {
            return Err(DescriptorError::Malformed { word: 0 });
        }
        if w[7] & RESERVED_7 != 0 {
            return Err(DescriptorError::Malformed { word: 7 });
        }
        let mut d = Descriptor::new(opcode);
        d.flags = flags;
        d.session = SessionId(W_SESSION.of(w[0]) as u32);
        d.wr_id = w[6];
        d.timeout_us = W_TIMEOUT_US.of(w[7]) as u32;
        let inline = flags.contains(Flags::INLINE);
        if inline {
            d.inline_len = inline_len;
            d.len = inline_len as u32;
            let words = if opcode.is_one_sided() { 1 } else { 5 };
            for i in 0..words {
                d.inline[i * 8..i * 8 + 8].copy_from_slice(&w[1 + i].to_le_bytes());
            }
        } else {
            d.local_va = GpuVa(w[1]);
            d.len = W_LEN.of(w[2]) as u32;
            d.lkey = Lkey(W_LKEY.of(w[2]) as u32);
        }
        if !inline || opcode.is_one_sided() {
            d.remote_va = GpuVa(w[3]);
            d.imm = W_IMM.of(w[4]) as u32;
            d.rkey = Rkey(W_RKEY.of(w[4]) as u32);
            d.operand = w[5];
        }
        Ok(d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_keeps_all_64_bits() {
        let mut d = Descriptor::new(Opcode::Recv);
        d.flags = Flags::SOME;
        d.session = SessionId(0xabcdef);
        d.local_va = GpuVa(u64::MAX);
        d.len = u32::MAX;
        d.lkey = Lkey(u32::MAX);
        d.remote_va = GpuVa(1 << 63);
        d.rkey = Rkey(0x8000_0001);
        d.imm = 0x8000_0000;
        d.operand = u64::MAX - 1;
        d.wr_id = 0xffff_0000_ffff_0000;
        d.timeout_us = u32::MAX;
        for lap in [0, LAP] {
            let e = d.encode(lap);
            assert!(e.is_valid(lap) && !e.is_valid(lap ^ LAP));
            assert_eq!(e.decode(), Ok(d));
            assert_eq!(e.wr_id(), d.wr_id);
            assert_eq!(e.operands(), (d.local_va, d.len, d.remote_va));
        }
    }

    #[test]
    fn inline_payload_keeps_every_bit() {
        for len in 0..=INLINE_MAX {
            let mut d = Descriptor::new(Opcode::Send);
            d.flags = Flags::INLINE;
            d.inline_len = len as u8;
            d.len = len as u32;
            d.inline = [0xff; INLINE_MAX];
            assert_eq!(d.encode(0).decode(), Ok(d));
        }
    }

    #[test]
    fn one_sided_entries_keep_every_field_and_refuse_flags_of_others() {
        let mut d = Descriptor::new(Opcode::Put);
        d.flags = Flags(Flags::of(Opcode::Put).0);
        d.session = SessionId(0xabcdef);
        d.remote_va = GpuVa(1 << 63 | 5);
        d.rkey = Rkey(u32::MAX);
        (d.imm, d.operand, d.wr_id) = (u32::MAX, u64::MAX, u64::MAX);
        for len in 0..=PUT_INLINE_MAX {
            (d.inline_len, d.len) = (len as u8, len as u32);
            d.inline[..8].copy_from_slice(&u64::MAX.to_le_bytes());
            assert_eq!(d.encode(LAP).decode(), Ok(d));
        }
        d.inline_len = PUT_INLINE_MAX as u8 + 1;
        let word0 = Err(DescriptorError::Malformed { word: 0 });
        assert_eq!(d.encode(0).decode(), word0);
        for opcode in (0..=255).filter_map(Opcode::from_code) {
            for bit in 0..8 {
                let mut d = Descriptor::new(opcode);
                d.flags = Flags(1 << bit);
                let allowed = Flags::of(opcode).contains(d.flags)
                    && d.flags != Flags::SIGNAL_SET
                    && (d.flags != Flags::INLINE || matches!(opcode, Opcode::Send | Opcode::Put));
                let decoded = d.encode(0).decode();
                assert_eq!(decoded.is_ok(), allowed, "{opcode:?} bit {bit}");
            }
        }
    }

    #[test]
    fn the_short_cut_for_inline_sends_agrees_with_the_whole_decoder() {
        let mut d = Descriptor::new(Opcode::Send);
        d.flags = Flags::INLINE.union(Flags::PUSH);
        d.session = SessionId(0x12_3456);
        d.inline_len = 17;
        d.inline = core::array::from_fn(|i| 0x80 | i as u8);
        d.timeout_us = 5;
        d.wr_id = u64::MAX;
        let good = d.encode(LAP);
        assert_eq!(good.kind(), EntryKind::InlineSend);
        let short = good.inline_send();
        assert_eq!((short.session, short.len), (d.session, d.inline_len));
        for (i, word) in short.words.iter().enumerate() {
            assert_eq!(word.to_le_bytes(), d.inline[i * 8..i * 8 + 8]);
        }
        // Every single bit of the words that say what it is: both take it, or both leave it.
        for word in [0, 7] {
            for bit in 0..63 {
                let mut e = good;
                e.0[word] ^= 1 << bit;
                let is_inline =
                    |d: &Descriptor| d.opcode == Opcode::Send && d.flags.contains(Flags::INLINE);
                let whole = e.decode().ok().filter(is_inline);
                let short = (e.kind() == EntryKind::InlineSend).then(|| e.inline_send());
                assert_eq!(
                    short.map(|s| (s.session, s.len)),
                    whole.map(|d| (d.session, d.inline_len)),
                    "word {word}, bit {bit}"
                );
            }
        }
    }

    #[test]
    fn the_short_cuts_for_memory_agree_with_the_whole_decoder() {
        short_cut_agrees(Opcode::Recv, EntryKind::Receive);
        short_cut_agrees(Opcode::Send, EntryKind::Send);
        short_cut_agrees(Opcode::Nop, EntryKind::Nop);
    }

    fn short_cut_agrees(opcode: Opcode, kind: EntryKind) {
        let mut d = Descriptor::new(opcode);
        d.flags = Flags::SOME;
        d.session = SessionId(0xfe_dcba);
        d.local_va = GpuVa(u64::MAX - 6);
        d.len = 0x8765_4321;
        d.lkey = Lkey(0x9000_0007);
        d.timeout_us = 77;
        let good = d.encode(0);
        for word in 0..8 {
            for bit in 0..63 {
                let mut e = good;
                e.0[word] ^= 1 << bit;
                let whole = e.decode().ok().filter(|d| d.opcode == opcode);
                let whole = whole.filter(|d| !d.flags.contains(Flags::INLINE));
                let whole = whole.map(|d| Transfer {
                    session: d.session,
                    flags: d.flags,
                    local_va: d.local_va,
                    len: d.len,
                    lkey: d.lkey,
                    timeout_us: d.timeout_us,
                });
                let short = (e.kind() == kind).then(|| e.transfer());
                assert_eq!(short, whole, "word {word}, bit {bit}");
            }
        }
    }

    #[test]
    fn zeroed_and_torn_entries_are_not_valid() {
        assert!(!WorkQueueEntry::default().is_valid(lap_bit(0, 6)));
        let mut e = Descriptor::new(Opcode::Nop).encode(LAP);
        for i in 0..8 {
            e.0[i] ^= LAP;
            assert!(!e.is_valid(LAP) && !e.is_valid(0));
            e.0[i] ^= LAP;
        }
    }

    #[test]
    fn malformed_entries_name_the_word() {
        let good = Descriptor::new(Opcode::Send).encode(LAP);
        let mut e = good;
        e.0[0] |= 1 << 60;
        assert_eq!(e.decode(), Err(DescriptorError::Malformed { word: 0 }));
        let mut e = good;
        e.0[7] |= 1 << 50;
        assert_eq!(e.decode(), Err(DescriptorError::Malformed { word: 7 }));
        let mut e = good;
        e.0[0] = (e.0[0] & !0xff) | 0xee;
        assert_eq!(e.decode(), Err(DescriptorError::UnknownOpcode(0xee)));
        let mut d = Descriptor::new(Opcode::Send);
        d.flags = Flags::INLINE;
        d.inline_len = 41;
        assert_eq!(
            d.encode(0).decode(),
            Err(DescriptorError::Malformed { word: 0 })
        );
    }
}
