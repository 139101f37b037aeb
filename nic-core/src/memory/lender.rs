//! Memory that streams are lent while bytes wait in them: a connection at rest holds next to none.
//!
//! Pieces have powers of two as lengths. What comes back is kept for the next loan, up to a bound.
//! A loan beyond another bound is refused, but for what a peer was promised: it may send as much as
//! its window says, whether memory is scarce or not.
//!
//! A refusal never leaves a stream without any memory: pieces below [`SMALLEST`] are not counted.
//! So each stream has bytes on their way, or can have them, and goes on when they are acknowledged,
//! which needs no loan.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pieces of so many bytes and more are counted.
const SMALLEST: usize = 4 << 10;
/// Bytes that are kept for the next loans.
const KEPT: usize = 4 << 20;

#[derive(Debug)]
struct Stock {
    /// Pieces that are not lent, by the logarithm of their lengths.
    free: Vec<Vec<Box<[u8]>>>,
    kept: usize,
    /// Bytes that are lent, and the most before a loan is refused.
    lent: usize,
    most: usize,
}

/// What lends pieces. A clone lends from the same stock.
#[derive(Debug, Clone)]
pub(crate) struct Lender(Arc<Mutex<Stock>>);

impl Lender {
    /// A lender that refuses loans beyond so many bytes in all.
    pub(crate) fn new(most: usize) -> Lender {
        Lender(Arc::new(Mutex::new(Stock {
            free: Vec::new(),
            kept: 0,
            lent: 0,
            most,
        })))
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        // Nothing in here panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing, which can become more.
    pub(crate) fn nothing(&self) -> Lent {
        Lent {
            bytes: Box::default(),
            lender: self.clone(),
        }
    }

    /// Bytes that are lent.
    #[cfg(test)]
    pub(crate) fn lent(&self) -> usize {
        self.stock().lent
    }

    fn lend(&self, len: usize, promised: bool) -> Option<Box<[u8]>> {
        let mut stock = self.stock();
        let counted = counted(len);
        if !promised && counted > 0 && stock.lent + counted > stock.most {
            return None;
        }
        stock.lent += counted;
        let kept = stock.free.get_mut(class(len)).and_then(Vec::pop);
        stock.kept -= kept.as_ref().map_or(0, |_| len);
        drop(stock);
        Some(kept.unwrap_or_else(|| vec![0; len].into()))
    }

    fn take_back(&self, bytes: Box<[u8]>) {
        let len = bytes.len();
        if len == 0 {
            return;
        }
        let mut stock = self.stock();
        stock.lent -= counted(len);
        if stock.kept + len > KEPT {
            // Freed without the lock.
            drop(stock);
            return drop(bytes);
        }
        stock.kept += len;
        let class = class(len);
        if stock.free.len() <= class {
            stock.free.resize_with(class + 1, Vec::new);
        }
        stock.free[class].push(bytes);
    }
}

fn class(len: usize) -> usize {
    len.ilog2() as usize
}

fn counted(len: usize) -> usize {
    if len < SMALLEST {
        0
    } else {
        len
    }
}

/// A piece that is lent until it is dropped.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) bytes: Box<[u8]>,
    lender: Lender,
}

impl Lent {
    /// Another piece, with bytes of no meaning; `len` is a power of two. `None`: too much is lent.
    pub(crate) fn another(&self, len: usize, promised: bool) -> Option<Lent> {
        Some(Lent {
            bytes: self.lender.lend(len, promised)?,
            lender: self.lender.clone(),
        })
    }

    /// Gives the bytes back.
    pub(crate) fn give_back(&mut self) {
        self.lender.take_back(std::mem::take(&mut self.bytes));
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loans_have_a_bound_and_promises_have_none() {
        let lender = Lender::new(3 * SMALLEST);
        let none = lender.nothing();
        let first = none.another(2 * SMALLEST, false).unwrap();
        assert!(none.another(2 * SMALLEST, false).is_none());
        let promised = none.another(2 * SMALLEST, true).unwrap();
        assert_eq!(lender.lent(), 4 * SMALLEST);
        assert!(none.another(SMALLEST, false).is_none());
        assert!(none.another(SMALLEST / 2, false).is_some(), "never refused");
        drop((first, promised));
        assert_eq!(lender.lent(), 0);
        assert!(none.another(SMALLEST, false).is_some());
    }

    #[test]
    fn what_comes_back_is_lent_again_and_kept_up_to_a_bound() {
        let lender = Lender::new(usize::MAX);
        let none = lender.nothing();
        let mut piece = none.another(SMALLEST, false).unwrap();
        piece.bytes[7] = 7;
        drop(piece);
        assert_eq!(none.another(SMALLEST, false).unwrap().bytes[7], 7);
        let pieces: Vec<_> = (0..3).map(|_| none.another(KEPT / 2, false)).collect();
        drop(pieces);
        assert!(lender.stock().kept <= KEPT);
        assert_eq!(lender.lent(), 0);
    }
}
