//! Hashes of items: their register number and rank.

/// How an item becomes a register number and a rank.
///
/// Two sketches can be merged only when their hashes are the same; none of them is keyed, so a
/// sender who knows the hash can choose items that fool the estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum HashKind {
    /// The default, because it alone keeps up with memory: two 32-bit finalisers of MurmurHash3
    /// for items of at most 4 bytes, its 64-bit finaliser for larger ones. The accuracy run of the
    /// bench finds no difference from the others on random, sequential and strided items.
    #[default]
    Mix,
    /// MurmurHash3_x64_128 of the item's bytes, seed 0, first 64 bits: the paper's 64-bit Murmur3
    /// (FpgaNIC §A.3 and its source, Kulkarni et al., FPL 2020).
    Murmur3,
    /// What Apache DataSketches computes for integers: widened to 64 bits with sign, then
    /// MurmurHash3_x64_128 with seed 9001; so a column of 32-bit and one of 64-bit integers agree.
    /// 16-byte items are hashed as their bytes. Sketches flow into Spark, Druid and others.
    DataSketches,
    /// As [`DataSketches`](HashKind::DataSketches), but of the item's bytes, as its
    /// `update(byte[])`.
    DataSketchesBytes,
}

/// Seed of Apache DataSketches' sketches, `DEFAULT_UPDATE_SEED`.
pub(super) const DATASKETCHES_SEED: u64 = 9001;

/// Bits of a 64-bit hash that are kept for the register number at every precision: ranks then
/// do not depend on it, and folding to a lower precision is exact.
const SLOT_BITS: u32 = 21;

impl HashKind {
    /// All, in the order of their numbers in an image.
    pub const ALL: [HashKind; 4] = [
        HashKind::Mix,
        HashKind::Murmur3,
        HashKind::DataSketches,
        HashKind::DataSketchesBytes,
    ];

    /// As in `hash=murmur3`.
    pub fn name(self) -> &'static str {
        match self {
            HashKind::Mix => "mix",
            HashKind::Murmur3 => "murmur3",
            HashKind::DataSketches => "datasketches",
            HashKind::DataSketchesBytes => "datasketches-bytes",
        }
    }

    /// The hash of that name.
    pub fn from_name(name: &str) -> Option<HashKind> {
        HashKind::ALL.into_iter().find(|h| h.name() == name)
    }

    /// Bits of the hash that a rank counts zeros in: ranks are 1 to this plus 1.
    pub fn rank_bits(self, width: usize) -> u8 {
        match self {
            HashKind::Mix if width <= 4 => 32,
            HashKind::Mix | HashKind::Murmur3 => (64 - SLOT_BITS) as u8,
            // The 6 bits of a coupon hold 63 at most.
            HashKind::DataSketches | HashKind::DataSketchesBytes => 62,
        }
    }

    /// Begins the hash of an item of any length. `None`: the kind hashes numbers of a fixed width.
    ///
    /// [`DataSketchesBytes`](HashKind::DataSketchesBytes) is what Apache DataSketches computes for
    /// a string of these bytes as UTF-8, but that it ignores an empty one.
    pub fn of_bytes(self) -> Option<ItemHash> {
        let seed = match self {
            HashKind::Murmur3 => 0,
            HashKind::DataSketchesBytes => DATASKETCHES_SEED,
            HashKind::Mix | HashKind::DataSketches => return None,
        };
        Some(ItemHash {
            kind: self,
            state: Murmur3::new(seed),
        })
    }

    /// Register number (before masking to the precision) and rank of one item.
    ///
    /// # Panics
    /// When the item has not 1, 2, 4, 8 or 16 bytes.
    pub fn slot_and_rank(self, item: &[u8]) -> (u32, u8) {
        macro_rules! by_width {
            ($Kind:ident) => {
                match item.len() {
                    1 => split::<{ kind::$Kind }, 1>(item),
                    2 => split::<{ kind::$Kind }, 2>(item),
                    4 => split::<{ kind::$Kind }, 4>(item),
                    8 => split::<{ kind::$Kind }, 8>(item),
                    16 => split::<{ kind::$Kind }, 16>(item),
                    n => panic!("an item has 1, 2, 4, 8 or 16 bytes, not {n}"),
                }
            };
        }
        match self {
            HashKind::Mix => by_width!(MIX),
            HashKind::Murmur3 => by_width!(MURMUR3),
            HashKind::DataSketches => by_width!(DATASKETCHES),
            HashKind::DataSketchesBytes => by_width!(DATASKETCHES_BYTES),
        }
    }
}

/// The hashes as constants, for functions that are compiled once for each.
pub(super) mod kind {
    pub(in crate::stream::hll) const MIX: u8 = 0;
    pub(in crate::stream::hll) const MURMUR3: u8 = 1;
    pub(in crate::stream::hll) const DATASKETCHES: u8 = 2;
    pub(in crate::stream::hll) const DATASKETCHES_BYTES: u8 = 3;
}

/// Whether the hash is a pair of 32-bit finalisers.
pub(super) const fn is_narrow(kind: u8, width: usize) -> bool {
    kind == kind::MIX && width <= 4
}

/// [`HashKind::rank_bits`] of a constant.
pub(super) const fn rank_bits(kind: u8, width: usize) -> u32 {
    match kind {
        kind::MIX if width <= 4 => 32,
        kind::MIX | kind::MURMUR3 => 64 - SLOT_BITS,
        _ => 62,
    }
}

/// The seed, and the length that is hashed, of a MurmurHash3 kind.
pub(super) const fn murmur_parameters(kind: u8, width: usize) -> (u64, u64) {
    match kind {
        kind::MURMUR3 => (0, width as u64),
        kind::DATASKETCHES if width < 8 => (DATASKETCHES_SEED, 8),
        _ => (DATASKETCHES_SEED, width as u64),
    }
}

/// Keeps item 0 from the fixed point of the finalisers, 0: it would always have the highest rank.
pub(super) const RANK_OFFSET: u32 = 0x9e37_79b9;
/// Makes the slot's finaliser another permutation than the rank's.
pub(super) const SLOT_OFFSET: u32 = 0x7f4a_7c15;
/// As [`RANK_OFFSET`], for 64 bits.
pub(super) const WIDE_OFFSET: u64 = 0x9e37_79b9_7f4a_7c15;

/// The 32-bit finaliser of MurmurHash3.
#[inline(always)]
pub(super) fn fmix32(mut h: u32) -> u32 {
    h ^= h >> 16;
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

/// The multipliers of [`fmix64`].
pub(super) const FMIX64: [u64; 2] = [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53];

/// The 64-bit finaliser of MurmurHash3.
#[inline(always)]
pub(super) fn fmix64(mut h: u64) -> u64 {
    h ^= h >> 33;
    h = h.wrapping_mul(FMIX64[0]);
    h ^= h >> 33;
    h = h.wrapping_mul(FMIX64[1]);
    h ^ (h >> 33)
}

/// The multipliers of MurmurHash3_x64_128.
pub(super) const MURMUR: [u64; 2] = [0x87c3_7b91_1142_53d5, 0x4cf5_ad43_2745_937f];
/// What MurmurHash3_x64_128 adds to each half after a block.
pub(super) const MURMUR_ADD: [u64; 2] = [0x52dc_e729, 0x3849_5ab5];

/// MurmurHash3_x64_128 of one block of 16 bytes, or of at most 8 bytes (`tail`).
#[inline(always)]
fn murmur3(lo: u64, hi: u64, seed: u64, len: u64) -> (u64, u64) {
    let [c1, c2] = MURMUR;
    let (mut h1, mut h2) = (seed, seed);
    h1 ^= lo.wrapping_mul(c1).rotate_left(31).wrapping_mul(c2);
    if len == 16 {
        h1 = h1.rotate_left(27).wrapping_add(h2);
        h1 = h1.wrapping_mul(5).wrapping_add(MURMUR_ADD[0]);
        h2 ^= hi.wrapping_mul(c2).rotate_left(33).wrapping_mul(c1);
        h2 = h2.rotate_left(31).wrapping_add(h1);
        h2 = h2.wrapping_mul(5).wrapping_add(MURMUR_ADD[1]);
    }
    h1 ^= len;
    h2 ^= len;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    h1 = fmix64(h1);
    h2 = fmix64(h2);
    h1 = h1.wrapping_add(h2);
    (h1, h2.wrapping_add(h1))
}

/// The item as two words, little-endian; widened with sign for DataSketches' integers.
#[inline(always)]
fn words<const KIND: u8, const W: usize>(item: &[u8]) -> (u64, u64) {
    let mut bytes = [0u8; 16];
    bytes[..W].copy_from_slice(&item[..W]);
    let both = u128::from_le_bytes(bytes);
    let (mut lo, hi) = (both as u64, (both >> 64) as u64);
    if KIND == kind::DATASKETCHES && W < 8 {
        let unused = 64 - 8 * W as u32;
        lo = ((lo << unused) as i64 >> unused) as u64;
    }
    (lo, hi)
}

/// The word that chooses the register, and the word whose leading zeros make the rank.
#[inline(always)]
pub(super) fn sources<const KIND: u8, const W: usize>(item: &[u8]) -> (u32, u64) {
    let (lo, hi) = words::<KIND, W>(item);
    if is_narrow(KIND, W) {
        let x = lo as u32;
        let rank = fmix32(x.wrapping_add(RANK_OFFSET));
        return (fmix32(x.wrapping_add(SLOT_OFFSET)), u64::from(rank) << 32);
    }
    let (slot, rank) = match KIND {
        kind::MIX => {
            let mut h = fmix64(lo.wrapping_add(WIDE_OFFSET));
            if W == 16 {
                h = fmix64(h.wrapping_add(hi));
            }
            (h, h)
        }
        _ => {
            let (seed, len) = murmur_parameters(KIND, W);
            let (h1, h2) = murmur3(lo, hi, seed, len);
            // One 64-bit hash has enough bits for both; DataSketches takes the rank from the other
            // half.
            (h1, if KIND == kind::MURMUR3 { h1 } else { h2 })
        }
    };
    (slot as u32, rank)
}

/// Register number before masking, and rank.
#[inline(always)]
pub(super) fn split<const KIND: u8, const W: usize>(item: &[u8]) -> (u32, u8) {
    let (slot, rank) = sources::<KIND, W>(item);
    (slot, rank.leading_zeros().min(rank_bits(KIND, W)) as u8 + 1)
}

/// MurmurHash3_x64_128 of any bytes, first 64 bits: the checksum of an image.
pub(super) fn murmur3_of_bytes(bytes: &[u8], seed: u64) -> u64 {
    let mut state = Murmur3::new(seed);
    state.update(bytes);
    state.finish().0
}

/// Eight bytes or fewer, little-endian.
fn word(bytes: &[u8]) -> u64 {
    let fold = |w: u64, &byte: &u8| w << 8 | u64::from(byte);
    bytes.iter().rev().fold(0, fold)
}

/// MurmurHash3_x64_128 of bytes that come in pieces.
#[derive(Debug, Clone, Copy)]
struct Murmur3 {
    halves: [u64; 2],
    /// The first bytes of a block whose rest has not come.
    carry: [u8; 16],
    len: u64,
}

impl Murmur3 {
    fn new(seed: u64) -> Murmur3 {
        Murmur3 {
            halves: [seed; 2],
            carry: [0; 16],
            len: 0,
        }
    }

    fn update(&mut self, mut bytes: &[u8]) {
        let carried = (self.len % 16) as usize;
        self.len += bytes.len() as u64;
        if carried > 0 {
            let (rest, after) = bytes.split_at(bytes.len().min(16 - carried));
            self.carry[carried..][..rest.len()].copy_from_slice(rest);
            if carried + rest.len() < 16 {
                return;
            }
            self.block(self.carry);
            bytes = after;
        }
        let mut blocks = bytes.chunks_exact(16);
        for block in &mut blocks {
            let mut whole = [0; 16];
            whole.copy_from_slice(block);
            self.block(whole);
        }
        let rest = blocks.remainder();
        self.carry[..rest.len()].copy_from_slice(rest);
    }

    fn block(&mut self, block: [u8; 16]) {
        let [c1, c2] = MURMUR;
        let [h1, h2] = &mut self.halves;
        *h1 ^= scramble(word(&block[..8]), 31, c1, c2);
        *h1 = h1.rotate_left(27).wrapping_add(*h2);
        *h1 = h1.wrapping_mul(5).wrapping_add(MURMUR_ADD[0]);
        *h2 ^= scramble(word(&block[8..]), 33, c2, c1);
        *h2 = h2.rotate_left(31).wrapping_add(*h1);
        *h2 = h2.wrapping_mul(5).wrapping_add(MURMUR_ADD[1]);
    }

    fn finish(self) -> (u64, u64) {
        let [c1, c2] = MURMUR;
        let [mut h1, mut h2] = self.halves;
        let tail = &self.carry[..(self.len % 16) as usize];
        if tail.len() > 8 {
            h2 ^= scramble(word(&tail[8..]), 33, c2, c1);
        }
        if !tail.is_empty() {
            h1 ^= scramble(word(&tail[..tail.len().min(8)]), 31, c1, c2);
        }
        h1 ^= self.len;
        h2 ^= self.len;
        h1 = h1.wrapping_add(h2);
        h2 = h2.wrapping_add(h1);
        h1 = fmix64(h1);
        h2 = fmix64(h2);
        h1 = h1.wrapping_add(h2);
        (h1, h2.wrapping_add(h1))
    }
}

fn scramble(k: u64, by: u32, first: u64, second: u64) -> u64 {
    k.wrapping_mul(first).rotate_left(by).wrapping_mul(second)
}

/// The hash of an item of any length, whose bytes come in pieces: a line, a field. Made by
/// [`HashKind::of_bytes`].
#[derive(Debug, Clone, Copy)]
pub struct ItemHash {
    kind: HashKind,
    state: Murmur3,
}

impl ItemHash {
    /// Takes the next bytes of the item.
    pub fn update(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
    }

    /// How it hashes.
    pub fn kind(&self) -> HashKind {
        self.kind
    }

    /// Register number before masking, and rank, of the bytes so far.
    pub(super) fn slot_and_rank(&self) -> (u32, u8) {
        let (h1, h2) = self.state.finish();
        let rank = if self.kind == HashKind::Murmur3 {
            h1
        } else {
            h2
        };
        let zeros = rank.leading_zeros() as u8;
        (h1 as u32, zeros.min(self.kind.rank_bits(16)) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur3_agrees_with_itself_at_every_length_and_with_published_values() {
        // smhasher's MurmurHash3_x64_128("hello", seed 0), first half.
        assert_eq!(murmur3_of_bytes(b"hello", 0), 0xcbd8_a7b3_41bd_9b02);
        assert_eq!(murmur3_of_bytes(b"", 0), 0);
        let bytes: Vec<u8> = (1..=16).collect();
        for width in [1usize, 2, 4, 8, 16] {
            let item = &bytes[..width];
            let (slot, _) = HashKind::Murmur3.slot_and_rank(item);
            assert_eq!(slot, murmur3_of_bytes(item, 0) as u32, "{width}");
            let (slot, _) = HashKind::DataSketchesBytes.slot_and_rank(item);
            assert_eq!(
                slot,
                murmur3_of_bytes(item, DATASKETCHES_SEED) as u32,
                "{width}"
            );
        }
    }

    #[test]
    fn an_item_in_pieces_is_hashed_as_a_whole_one() {
        let bytes: Vec<u8> = (0..100u32).map(|i| (i * 37 + 5) as u8).collect();
        for kind in [HashKind::Murmur3, HashKind::DataSketchesBytes] {
            for width in [1usize, 2, 4, 8, 16] {
                let mut item = kind.of_bytes().expect("hashes bytes");
                item.update(&bytes[..width]);
                assert_eq!(item.slot_and_rank(), kind.slot_and_rank(&bytes[..width]));
            }
            for len in 0..bytes.len() {
                let mut whole = kind.of_bytes().expect("hashes bytes");
                whole.update(&bytes[..len]);
                for piece in 1..20 {
                    let mut item = kind.of_bytes().expect("hashes bytes");
                    bytes[..len].chunks(piece).for_each(|p| item.update(p));
                    assert_eq!(item.slot_and_rank(), whole.slot_and_rank(), "{len} {piece}");
                }
            }
        }
        assert!(HashKind::Mix.of_bytes().is_none());
        assert!(HashKind::DataSketches.of_bytes().is_none());
    }

    #[test]
    fn datasketches_integers_do_not_depend_on_the_width() {
        let hash = |item: &[u8]| HashKind::DataSketches.slot_and_rank(item);
        for v in [-128i8, -1, 0, 1, 127] {
            let wide = hash(&i64::from(v).to_le_bytes());
            assert_eq!(hash(&v.to_le_bytes()), wide);
            assert_eq!(hash(&i16::from(v).to_le_bytes()), wide);
            assert_eq!(hash(&i32::from(v).to_le_bytes()), wide);
        }
    }

    #[test]
    fn ranks_stay_in_range_and_names_are_read_back() {
        for kind in HashKind::ALL {
            assert_eq!(HashKind::from_name(kind.name()), Some(kind));
            for width in [1usize, 2, 4, 8, 16] {
                for v in 0..=255u8 {
                    let (_, rank) = kind.slot_and_rank(&[v; 16][..width]);
                    assert!((1..=kind.rank_bits(width) + 1).contains(&rank));
                }
            }
        }
        assert_eq!(HashKind::from_name("md5"), None);
    }
}
