//! A graph of links that stays without a circle while edges are added, by an order that is kept up
//! (Pearce and Kelly, 2007).

/// Edges among the numbers below a limit, and an order of them in which every edge goes forward.
pub(crate) struct Ordered {
    from: Vec<Vec<u32>>,
    to: Vec<Vec<u32>>,
    /// The position of each.
    place: Vec<u32>,
    /// Marks of the search that runs.
    seen: Vec<bool>,
}

impl Ordered {
    pub(crate) fn new(count: usize) -> Ordered {
        Ordered {
            from: vec![Vec::new(); count],
            to: vec![Vec::new(); count],
            place: (0..count as u32).collect(),
            seen: vec![false; count],
        }
    }

    pub(crate) fn has(&self, a: usize, b: usize) -> bool {
        self.from[a].contains(&(b as u32))
    }

    /// Adds an edge that is not there, unless it would close a circle; whether it did.
    pub(crate) fn add(&mut self, a: usize, b: usize) -> bool {
        if a == b {
            return false;
        }
        if self.place[a] > self.place[b] {
            let (least, most) = (self.place[b], self.place[a]);
            let Some(ahead) = self.reach(b, Some(a), |place| place <= most, false) else {
                return false;
            };
            let behind = self.reach(a, None, |place| place >= least, true);
            self.reorder(&behind.unwrap_or_default(), &ahead);
        }
        self.from[a].push(b as u32);
        self.to[b].push(a as u32);
        true
    }

    /// Removes an edge; the order still holds.
    pub(crate) fn remove(&mut self, a: usize, b: usize) {
        self.from[a].retain(|n| *n as usize != b);
        self.to[b].retain(|n| *n as usize != a);
    }

    /// What an edge of the part between two places leads to, or with `back` comes from; none where
    /// `never` is among them.
    fn reach(
        &mut self,
        start: usize,
        never: Option<usize>,
        inside: impl Fn(u32) -> bool,
        back: bool,
    ) -> Option<Vec<usize>> {
        let mut found = vec![start];
        self.seen[start] = true;
        let mut done = 0;
        let mut closes = false;
        while let Some(n) = found.get(done).copied() {
            done += 1;
            let edges = if back { &self.to[n] } else { &self.from[n] };
            for next in edges.iter().map(|n| *n as usize) {
                closes |= never == Some(next);
                if !self.seen[next] && inside(self.place[next]) {
                    self.seen[next] = true;
                    found.push(next);
                }
            }
        }
        for n in &found {
            self.seen[*n] = false;
        }
        (!closes).then_some(found)
    }

    /// Puts what lies behind an edge before what lies ahead of it, in the places of both.
    fn reorder(&mut self, behind: &[usize], ahead: &[usize]) {
        let mut places = Vec::with_capacity(behind.len() + ahead.len());
        let mut all = Vec::with_capacity(places.capacity());
        for part in [behind, ahead] {
            let mut part = part.to_vec();
            part.sort_unstable_by_key(|n| self.place[*n]);
            places.extend(part.iter().map(|n| self.place[*n]));
            all.extend(part);
        }
        places.sort_unstable();
        for (n, place) in all.into_iter().zip(places) {
            self.place[n] = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Random;

    /// Beside a search of the whole graph for each edge.
    #[test]
    fn an_edge_is_refused_if_and_only_if_it_closes_a_circle() {
        let mut random = Random::new(5);
        for _ in 0..200 {
            let n = 2 + random.below(12);
            let mut ordered = Ordered::new(n);
            let mut edges: Vec<(usize, usize)> = Vec::new();
            for _ in 0..3 * n {
                let (a, b) = (random.below(n), random.below(n));
                if ordered.has(a, b) {
                    if random.below(2) == 0 {
                        ordered.remove(a, b);
                        edges.retain(|e| *e != (a, b));
                    }
                    continue;
                }
                let mut reached = vec![b];
                let mut done = 0;
                while let Some(at) = reached.get(done).copied() {
                    done += 1;
                    for (_, to) in edges.iter().filter(|(from, _)| *from == at) {
                        if !reached.contains(to) {
                            reached.push(*to);
                        }
                    }
                }
                let closes = reached.contains(&a);
                assert_eq!(ordered.add(a, b), !closes, "{a} -> {b} in {edges:?}");
                if !closes {
                    edges.push((a, b));
                }
                assert!(edges
                    .iter()
                    .all(|(a, b)| ordered.place[*a] < ordered.place[*b]));
            }
        }
    }
}
