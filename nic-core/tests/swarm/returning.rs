//! A NIC that comes back: a new one at the address of one that has ended or stopped.

use super::collective_support::nic::driven::*;
use super::run::{Run, MEMORY};

/// Virtual time in which the new NIC and the others must have met. Others may have to find out
/// first that the old one is gone.
const REUNION: u64 = 60_000_000_000;
/// Virtual time between two attempts.
const AGAIN: u64 = 1_000_000_000;

/// Plays the return, unless all NICs are there. `early`: sessions are made and ranks meet while
/// operations with the old NIC are under way.
pub(super) fn play(run: &mut Run<'_>, early: bool) -> Result<(), String> {
    let Some(rank) = run.replace()? else {
        return Ok(());
    };
    if !early {
        run.settle()?;
        let memory = run.w.host(rank).peek(0, MEMORY);
        if let Some(at) = memory.iter().position(|b| *b != 0) {
            return Err(format!(
                "byte {at} of the new NIC {rank} was written by operations with the old one"
            ));
        }
    }
    for (from, to) in run.leave(rank)? {
        run.reconnect(from, to)?;
    }
    let all: Vec<usize> = (0..run.plan.ranks).collect();
    let until = run.w.now + REUNION;
    let comms = loop {
        let ids = run.begin(&all);
        if let Some(comms) = run.met(&all, ids.clone())? {
            break comms;
        }
        run.free(&all, &ids)?;
        if run.w.now > until {
            let seen = run.hung();
            return Err(format!("all do not meet the new NIC {rank}\n{seen}"));
        }
        run.pass(AGAIN)?;
    };
    run.settle()?;
    let old = std::mem::replace(&mut run.w.comms, comms);
    for at in (0..run.plan.ranks).filter(|at| *at != rank) {
        run.free(&[at], &[old[at]])?;
    }
    run.rejoined();
    Ok(())
}

impl Run<'_> {
    /// Ends the sessions with a NIC that is gone. The pairs that had them.
    fn leave(&mut self, gone: usize) -> Result<Vec<(usize, usize)>, String> {
        let with = |(from, to): &(usize, usize)| *from == gone || *to == gone;
        let pairs: Vec<_> = self.sessions.keys().copied().filter(with).collect();
        for pair in &pairs {
            let Some((here, there)) = self.sessions.remove(pair) else {
                continue;
            };
            let (rank, session) = match pair.0 == gone {
                true => (pair.1, there),
                false => (pair.0, here),
            };
            self.call(rank, &close(session))?;
            self.closed.push((rank, session));
        }
        Ok(pairs)
    }

    /// A new session. An attempt over the link to the old NIC fails with the link.
    fn reconnect(&mut self, from: usize, to: usize) -> Result<(), String> {
        let until = self.w.now + REUNION;
        loop {
            if let Some(ends) = self.connect(from, to)? {
                self.sessions.insert((from, to), ends);
                return Ok(());
            }
            if self.w.now > until {
                return Err(format!("{from} does not reach {to}\n{}", self.hung()));
            }
            self.pass(AGAIN)?;
        }
    }

    /// Steps for so long.
    fn pass(&mut self, ns: u64) -> Result<(), String> {
        let until = self.w.now + ns;
        while self.w.now < until {
            self.step()?;
        }
        Ok(())
    }
}
