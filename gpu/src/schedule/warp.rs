//! Operations of a warp: done when every lane of their mask has come (§9.7.9.6, §9.7.13).

use super::lanes::each;
use super::matrix;
use crate::context::{why, Thread};
use crate::module::{ShuffleOp, WarpOp};

/// `bar.warp.sync`.
pub(super) const SYNC: u32 = 0;

/// `activemask`.
const ACTIVE: u32 = 28;

/// Numbers of warp operations in `Thread::kind`.
pub(crate) fn code(op: WarpOp) -> u32 {
    match op {
        WarpOp::Sync => SYNC,
        WarpOp::Ballot => 1,
        WarpOp::Any => 2,
        WarpOp::All => 3,
        WarpOp::Uni => 4,
        WarpOp::Shuffle(ShuffleOp::Up) => 5,
        WarpOp::Shuffle(ShuffleOp::Down) => 6,
        WarpOp::Shuffle(ShuffleOp::Bfly) => 7,
        WarpOp::Shuffle(ShuffleOp::Idx) => 8,
        WarpOp::MatchAny => 9,
        WarpOp::MatchAll => 10,
        WarpOp::ReduxAdd(_) => 11,
        WarpOp::ReduxMin(false) => 12,
        WarpOp::ReduxMin(true) => 13,
        WarpOp::ReduxMax(false) => 14,
        WarpOp::ReduxMax(true) => 15,
        WarpOp::ReduxAnd => 16,
        WarpOp::ReduxOr => 17,
        WarpOp::ReduxXor => 18,
        WarpOp::Elect => 19,
        WarpOp::Active => ACTIVE,
        WarpOp::ReduxFloat(flags) => 20 + u32::from(flags & 7),
    }
}

/// Completes the operations of a warp whose lanes have all come; `open` are those that stand at
/// one, `live` those that have not ended. The lanes that can run now. `completes` sees the lanes
/// and the kind of each operation before it is done.
pub(super) fn settle(
    warp: &mut [Thread],
    open: u32,
    live: u32,
    completes: &mut dyn FnMut(&[Thread], u32, u32),
) -> u32 {
    let (mut rest, mut ran) = (open, 0);
    while rest != 0 {
        let first = &warp[rest.trailing_zeros() as usize];
        // Lanes that have ended are not waited for.
        let (mask, kind) = (first.mask & live, first.kind);
        let same = |i: &usize| warp[*i].kind == kind && warp[*i].mask & live == mask;
        let here = each(rest & mask).filter(same).fold(0, |m, i| m | 1u32 << i);
        rest &= !(here | (rest & rest.wrapping_neg()));
        if here == mask && here != 0 {
            completes(warp, mask, kind);
            complete(warp, mask, kind);
            ran |= mask;
        }
    }
    match ran {
        0 => settle_active(warp, open),
        ran => ran,
    }
}

/// Where no other operation is complete, those who ask for the active lanes are as many as can be:
/// the lanes of each place get each other.
fn settle_active(warp: &mut [Thread], open: u32) -> u32 {
    let asks = |i: &usize| warp[*i].kind == ACTIVE;
    let asking = each(open).filter(asks).fold(0, |m, i| m | 1u32 << i);
    let mut rest = asking;
    while rest != 0 {
        let site = warp[rest.trailing_zeros() as usize].site;
        let here = each(rest).filter(|i| warp[*i].site == site);
        let mask = here.fold(0, |m, i| m | 1u32 << i);
        complete(warp, mask, ACTIVE);
        rest &= !mask;
    }
    asking
}

fn complete(warp: &mut [Thread], mask: u32, kind: u32) {
    if kind >= matrix::ROWS {
        matrix::complete(warp, mask, kind);
        each(mask).for_each(|i| warp[i].why = why::RUNNABLE);
        return;
    }
    let first = mask.trailing_zeros() as usize;
    let ballot = || each(mask).fold(0u32, |b, i| b | u32::from(warp[i].value != 0) << i);
    let reduce = |f: &dyn Fn(u32, u32) -> u32| {
        let values = each(mask).map(|i| warp[i].value as u32);
        values.reduce(f).unwrap_or(0)
    };
    let signed = |f: fn(i32, i32) -> i32| move |a: u32, b: u32| f(a as i32, b as i32) as u32;
    // Of all lanes the same, or of each its own.
    let common = match kind {
        0 => Some((0, 0)),
        1 => Some((ballot(), 0)),
        2 => Some((u32::from(ballot() != 0), 0)),
        3 => Some((u32::from(ballot() == mask), 0)),
        4 => Some((u32::from(ballot() == mask || ballot() == 0), 0)),
        10 => {
            let same = each(mask).all(|i| warp[i].value == warp[first].value);
            Some((if same { mask } else { 0 }, u32::from(same)))
        }
        11 => Some((reduce(&u32::wrapping_add), 0)),
        12 => Some((reduce(&u32::min), 0)),
        13 => Some((reduce(&signed(i32::min)), 0)),
        14 => Some((reduce(&u32::max), 0)),
        15 => Some((reduce(&signed(i32::max)), 0)),
        16 => Some((reduce(&|a, b| a & b), 0)),
        17 => Some((reduce(&|a, b| a | b), 0)),
        18 => Some((reduce(&|a, b| a ^ b), 0)),
        ACTIVE => Some((mask, 0)),
        20..=27 => {
            let values = each(mask).map(|i| f32::from_bits(warp[i].value as u32));
            Some((extreme(values, kind - 20), 0))
        }
        _ => None,
    };
    let values: [u64; 32] = std::array::from_fn(|i| warp.get(i).map_or(0, |t| t.value));
    for i in each(mask) {
        let t = &mut warp[i];
        let (result, second) = match (common, kind) {
            (Some(c), _) => c,
            (None, 5..=8) => shuffle(&values, i as u32, kind, t.b, t.c),
            (None, 9) => {
                let same = each(mask).filter(|j| values[*j] == t.value);
                (same.fold(0, |m, j| m | 1 << j), 0)
            }
            _ => (first as u32, u32::from(i == first)),
        };
        t.result = u64::from(result);
        t.second = second;
        t.why = why::RUNNABLE;
    }
}

/// Lanes of a shuffle that take the value of a lane outside of it, and which that is. Lanes at the
/// end of `up` and `down` are not among them: what they get is commonly left alone.
pub(super) fn silent(warp: &[Thread], mask: u32, kind: u32) -> Vec<(usize, u32)> {
    if !matches!(kind, 7 | 8) {
        return Vec::new();
    }
    let from = each(mask).map(|i| (i, source(i as u32, kind, warp[i].b, warp[i].c).0));
    from.filter(|(_, from)| mask >> from & 1 == 0).collect()
}

/// `redux.sync` of `f32`; -0 is below +0.
fn extreme(values: impl Iterator<Item = f32>, flags: u32) -> u32 {
    let key = |v: f32| match (v.to_bits() as i32) < 0 {
        true => !v.to_bits(),
        false => v.to_bits() | 1 << 31,
    };
    let (mut best, mut nan) = (None, false);
    for v in values.map(|v| if flags & 1 == 1 { v.abs() } else { v }) {
        let better = |old: f32| {
            if flags & 4 == 4 {
                key(v) > key(old)
            } else {
                key(v) < key(old)
            }
        };
        if v.is_nan() {
            nan = true;
        } else if best.is_none_or(better) {
            best = Some(v);
        }
    }
    match best {
        Some(v) if !(nan && flags & 2 == 2) => v.to_bits(),
        _ => 0x7fff_ffff,
    }
}

fn shuffle(values: &[u64; 32], lane: u32, kind: u32, b: u32, c: u32) -> (u32, u32) {
    let (from, valid) = source(lane, kind, b, c);
    (values[from as usize] as u32, u32::from(valid))
}

/// The lane whose value a lane gets, and whether it is inside of its segment: the pseudocode of
/// §9.7.9.6.
fn source(lane: u32, kind: u32, b: u32, c: u32) -> (u32, bool) {
    let (bval, cval, segment) = (b & 31, c & 31, c >> 8 & 31);
    let max_lane = (lane & segment) | (cval & !segment & 31);
    let min_lane = lane & segment;
    let (from, valid) = match kind {
        5 => {
            let from = lane as i32 - bval as i32;
            (from as u32, from >= max_lane as i32)
        }
        6 => (lane + bval, lane + bval <= max_lane),
        7 => (lane ^ bval, lane ^ bval <= max_lane),
        _ => {
            let from = min_lane | (bval & !segment & 31);
            (from, from <= max_lane)
        }
    };
    let from = if valid { from } else { lane };
    (from & 31, valid)
}
