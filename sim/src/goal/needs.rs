//! What operations wait for, and circles among them, in which none ever begins.

/// For what an operation waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Place of the other operation in its rank's list.
    pub op: u32,
    /// It waits for that one's begin (`irequires`), not for its end (`requires`).
    pub begin: bool,
}

/// Operations of a circle, by their places: each waits for the next, and the last for the first.
pub(super) fn circle<'a>(ops: usize, needs: impl Fn(usize) -> &'a [Need]) -> Option<Vec<u32>> {
    let mut waits: Vec<u32> = (0..ops).map(|i| needs(i).len() as u32).collect();
    let mut freed: Vec<Vec<u32>> = vec![Vec::new(); ops];
    for i in 0..ops {
        for need in needs(i) {
            freed[need.op as usize].push(i as u32);
        }
    }
    let mut free: Vec<u32> = (0..ops as u32)
        .filter(|i| waits[*i as usize] == 0)
        .collect();
    while let Some(done) = free.pop() {
        for &next in &freed[done as usize] {
            waits[next as usize] -= 1;
            if waits[next as usize] == 0 {
                free.push(next);
            }
        }
    }
    // Each that is left waits for another that is left: a walk comes back to where it was.
    let mut at = waits.iter().position(|w| *w > 0)?;
    let mut seen = vec![None; ops];
    let mut walk = Vec::new();
    while seen[at].is_none() {
        seen[at] = Some(walk.len());
        walk.push(at as u32);
        at = needs(at).iter().find(|n| waits[n.op as usize] > 0)?.op as usize;
    }
    Some(walk.split_off(seen[at].unwrap_or(0)))
}
