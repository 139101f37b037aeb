//! Communicators of which a new one is made: of the members of both, and of those without one.

use ringbell_nic_abi::CollectiveKind as K;

use super::plan::PLAIN;
use super::run::Run;
use super::scenes::Done;

/// Two communicators without common members, which become one, and one that leaves it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) both: [Vec<usize>; 2],
    pub(super) count: u64,
    /// Its rank in that of both.
    pub(super) without: usize,
}

impl Merge {
    pub(super) fn members(&self) -> Vec<usize> {
        self.both.concat()
    }
}

pub(super) fn play(run: &mut Run<'_>, id: usize, scene: &Merge) -> Done {
    // Operands for all that is under way at once.
    run.settle()?;
    let what = (K::AllReduce, 0, scene.count as usize);
    let mut made = Vec::new();
    for members in &scene.both {
        let Some(comms) = run.meet(members)? else {
            return Ok(());
        };
        run.collective(id, members, &comms, what, PLAIN)?;
        made.push((members.clone(), comms));
    }
    // Both go on meanwhile, and afterwards.
    let all = scene.members();
    let Some(comms) = run.meet(&all)? else {
        return Ok(());
    };
    run.collective(id, &all, &comms, what, PLAIN)?;
    made.push((all.clone(), comms));
    for (members, comms) in made.iter().take(2) {
        run.collective(id, members, comms, what, PLAIN)?;
    }
    run.all_end(id)?;
    // The parts go, and what was made of them stays.
    for (members, comms) in made.drain(..2) {
        run.free(&members, &comms)?;
    }
    let mut fewer = all;
    fewer.remove(scene.without);
    let Some(comms) = run.meet(&fewer)? else {
        return Ok(());
    };
    made.push((fewer, comms));
    for (members, comms) in &made {
        run.collective(id, members, comms, what, PLAIN)?;
    }
    run.all_end(id)?;
    for (members, comms) in made {
        run.free(&members, &comms)?;
    }
    Ok(())
}
