//! Vector clocks: what of other threads' past happened before a thread's present (§8.7, base
//! causality order).
//!
//! A thread stamps its accesses with its clock, which it advances where it lets others see its
//! past. What it knows is kept by groups, because most threads of a block know the same: whole
//! blocks and warps, up to a stamp, and single threads.

use std::sync::Arc;

/// A thread of a launch: the block's number among those of all launches, and its number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Actor(u32);

/// Bits of an actor for the thread.
const THREAD_BITS: u32 = 10;

/// Of these, bits for the lane.
const WARP_BITS: u32 = 5;

/// Operations of the NIC are threads of this block.
const NIC_BLOCK: u32 = (1 << (32 - THREAD_BITS)) - 1;

/// Most blocks between two moments at which no kernel runs.
pub(crate) const MOST_BLOCKS: u32 = NIC_BLOCK;

impl Actor {
    /// Block 0 has no threads: its actors are those below.
    pub(crate) const NONE: Actor = Actor(0);
    pub(crate) const HOST: Actor = Actor(1);

    #[inline]
    pub(crate) fn new(block: u32, thread: u32) -> Actor {
        Actor(block << THREAD_BITS | thread)
    }

    #[inline]
    pub(crate) fn block(self) -> u32 {
        self.0 >> THREAD_BITS
    }

    pub(crate) fn thread(self) -> u32 {
        self.0 & ((1 << THREAD_BITS) - 1)
    }

    pub(crate) fn warp(self) -> u32 {
        self.0 >> WARP_BITS
    }

    /// An operation of the NIC, by its number; those of 1,024 operations differ.
    pub(crate) fn operation(number: u32) -> Actor {
        Actor::new(NIC_BLOCK, number % (1 << THREAD_BITS))
    }

    /// A thread of a kernel.
    #[inline]
    pub(crate) fn is_thread(self) -> bool {
        (1..NIC_BLOCK).contains(&self.block())
    }
}

/// Whose past is known: a thread, a warp or a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Group(u64);

const THREAD: u64 = 0;
const WARP: u64 = 1;
const BLOCK: u64 = 2;

impl Group {
    fn thread(actor: Actor) -> Group {
        Group(THREAD << 32 | u64::from(actor.0))
    }

    fn warp(warp: u32) -> Group {
        Group(WARP << 32 | u64::from(warp))
    }

    fn block(block: u32) -> Group {
        Group(BLOCK << 32 | u64::from(block))
    }

    /// The block that it is, or is of.
    fn of_block(self) -> u32 {
        let number = self.0 as u32;
        match self.0 >> 32 {
            THREAD => Actor(number).block(),
            WARP => Actor(number << WARP_BITS).block(),
            _ => number,
        }
    }

    /// Whether it is one operation of the NIC.
    fn is_operation(self) -> bool {
        self.0 >> 32 == THREAD && self.of_block() == NIC_BLOCK
    }
}

/// Stamps up to which the past of groups is known, in the groups' order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Known(Vec<(Group, u32)>);

impl Known {
    fn get(&self, group: Group) -> Option<u32> {
        let at = self.0.binary_search_by_key(&group, |(g, _)| *g).ok()?;
        Some(self.0[at].1)
    }

    fn raise(&mut self, group: Group, stamp: u32) {
        match self.0.binary_search_by_key(&group, |(g, _)| *g) {
            Ok(at) => self.0[at].1 = stamp.max(self.0[at].1),
            Err(at) => self.0.insert(at, (group, stamp)),
        }
    }

    /// An operation of the NIC has ended.
    pub(crate) fn ended(&mut self, number: u32) {
        self.raise(Group::thread(Actor::operation(number)), number);
    }

    /// All operations of the NIC up to this one have.
    pub(crate) fn all_ended(&mut self, number: u32) {
        self.raise(Group::block(NIC_BLOCK), number);
        self.forget_operations();
    }

    /// Of the NIC's operations, those that are known one by one and as a part of all.
    fn forget_operations(&mut self) {
        if let Some(all) = self.get(Group::block(NIC_BLOCK)) {
            self.0
                .retain(|(g, stamp)| !g.is_operation() || *stamp > all);
        }
    }

    /// What is known of threads of kernels.
    pub(crate) fn forget_kernels(&mut self) {
        let kernels = 1..NIC_BLOCK;
        self.0.retain(|(g, _)| !kernels.contains(&g.of_block()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn covers(&self, actor: Actor, stamp: u32) -> bool {
        let groups = [
            Group::thread(actor),
            Group::warp(actor.warp()),
            Group::block(actor.block()),
        ];
        groups
            .iter()
            .any(|g| self.get(*g).is_some_and(|s| s >= stamp))
    }

    /// Whether all that `other` knows is known here.
    fn has_all_of(&self, other: &Known) -> bool {
        let mut own = self.0.iter();
        let has = |(group, stamp): &(Group, u32)| {
            let same = own.find(|(g, _)| g >= group);
            same.is_some_and(|(g, s)| g == group && s >= stamp)
        };
        self.0.len() >= other.0.len() && other.0.iter().all(has)
    }

    fn join(&mut self, other: &Known) {
        let mut all = Vec::with_capacity(self.0.len() + other.0.len());
        let mut more = other.0.iter().copied().peekable();
        for (group, stamp) in self.0.drain(..) {
            while let Some(new) = more.next_if(|(g, _)| *g < group) {
                all.push(new);
            }
            let same = more.next_if(|(g, _)| *g == group);
            all.push((group, same.map_or(stamp, |(_, s)| s.max(stamp))));
        }
        all.extend(more);
        self.0 = all;
        if other.get(Group::block(NIC_BLOCK)).is_some() {
            self.forget_operations();
        }
    }
}

/// Joins shared knowledge. Where one side has all of the other's, both share it then: threads that
/// read a word again and again compare pointers alone.
pub(crate) fn join(own: &mut Arc<Known>, other: &Arc<Known>) {
    if Arc::ptr_eq(own, other) || other.0.is_empty() {
        return;
    }
    if other.has_all_of(own) {
        *own = other.clone();
    } else if !own.has_all_of(other) {
        Arc::make_mut(own).join(other);
    }
}

/// The same of what may be nothing.
pub(crate) fn join_some(own: &mut Option<Arc<Known>>, other: &Arc<Known>) {
    match own {
        None => *own = Some(other.clone()),
        Some(own) => join(own, other),
    }
}

/// What a thread knows, and its clock. A block has one for each thread, most of which know nothing
/// of their own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock {
    /// The stamp of its next accesses; from 1.
    pub(crate) now: u32,
    /// All of its block's threads up to this stamp, and all of its warp's.
    pub(crate) block: u32,
    pub(crate) warp: u32,
    /// Of other blocks, the host and the NIC, and single threads of its block; nothing, if that is
    /// what all threads of the launch know from its begin.
    pub(crate) others: Option<Arc<Known>>,
    /// What a fence has let others see, by the fence's scope: seen with later strong stores.
    pub(crate) fenced: [Option<Arc<Known>>; 2],
    /// What strong loads have read of others, by whether the whole GPU's scope was needed: known
    /// after a fence.
    pub(crate) read: [Option<Arc<Known>>; 2],
}

impl Clock {
    /// Of a thread that has done nothing.
    pub(crate) fn new() -> Clock {
        Clock {
            now: 1,
            ..Clock::default()
        }
    }

    /// `base` is what all threads of its launch know, here and below.
    pub(crate) fn knows(&self, own: Actor, actor: Actor, stamp: u32, base: &Known) -> bool {
        if actor == own {
            return true;
        }
        let of_block = actor.block() == own.block() && own.is_thread();
        let others = self.others.as_deref().unwrap_or(base);
        of_block && (stamp <= self.block || stamp <= self.warp && actor.warp() == own.warp())
            || others.covers(actor, stamp)
    }

    /// Its past and what it knows.
    pub(crate) fn peek(&self, own: Actor, base: &Known) -> Arc<Known> {
        let mut known = self.others.as_deref().unwrap_or(base).clone();
        known.raise(Group::thread(own), self.now);
        if own.is_thread() {
            known.raise(Group::warp(own.warp()), self.warp);
            known.raise(Group::block(own.block()), self.block);
        }
        Arc::new(known)
    }

    /// The same for others; what it does from now on is not in it.
    pub(crate) fn release(&mut self, own: Actor, base: &Known) -> Arc<Known> {
        let known = self.peek(own, base);
        self.now += 1;
        known
    }

    pub(crate) fn acquire(&mut self, known: &Arc<Known>, base: &Arc<Known>) {
        join(self.others.get_or_insert_with(|| base.clone()), known);
    }
}

/// Lets threads of a block know each other's past: those of a barrier or of a warp operation.
/// `clocks` are all of the block's; `whole` says of which warps no thread that has not ended is
/// missing, if it is not the block.
pub(crate) fn meet(
    clocks: &mut [Clock],
    block: u32,
    here: &[usize],
    whole: impl Fn(usize) -> bool,
    all: bool,
    base: &Arc<Known>,
) {
    let Some(first) = here.first() else { return };
    let mut others = clocks[*first].others.clone();
    let (mut now, mut known) = (0, 0);
    // A fence of each thread, a barrier, and a strong store of one of them is common practice, and
    // does what it is to do.
    let mut fenced: [Option<Arc<Known>>; 2] = [None, None];
    // Whether all know the same of others, and have no fence behind them.
    let mut alike = true;
    for i in here {
        let c = &clocks[*i];
        now = now.max(c.now);
        known = known.max(c.block);
        match (&mut others, &c.others) {
            (None, None) => {}
            (Some(all), Some(own)) if Arc::ptr_eq(all, own) => {}
            (all, own) => {
                alike = false;
                let all = all.get_or_insert_with(|| base.clone());
                join(all, own.as_ref().unwrap_or(base));
            }
        }
        for (all, own) in fenced.iter_mut().zip(&c.fenced) {
            if let Some(own) = own {
                alike = false;
                join_some(all, own);
            }
        }
    }
    if all {
        // Threads that have ended are counted in.
        now = clocks.iter().map(|c| c.now).max().unwrap_or(now);
        known = now;
    } else {
        let one_warp = here.iter().all(|i| i / 32 == first / 32);
        if !(one_warp && whole(first / 32)) {
            let mut more = others.as_deref().unwrap_or(base).clone();
            for i in here {
                let actor = Actor::new(block, *i as u32);
                if whole(i / 32) {
                    more.raise(Group::warp(actor.warp()), now);
                } else {
                    more.raise(Group::thread(actor), clocks[*i].now);
                    // What it knows of its warp is its own.
                    more.raise(Group::warp(actor.warp()), clocks[*i].warp);
                }
            }
            alike = false;
            others = Some(Arc::new(more));
        }
    }
    for i in here {
        let c = &mut clocks[*i];
        c.block = c.block.max(known);
        if !all && whole(i / 32) {
            c.warp = c.warp.max(now);
        }
        c.now = now + 1;
        if !alike {
            c.fenced = fenced.clone();
            c.others = others.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against maps: what one thread knows and what another knows, at random.
    #[test]
    fn joined_knowledge_is_the_higher_stamp_of_each_group() {
        use std::collections::BTreeMap;

        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..2000 {
            let mut sides: [(Known, BTreeMap<Group, u32>); 2] = Default::default();
            for (known, model) in &mut sides {
                for _ in 0..random(6) {
                    let group = Group(random(3) << 32 | random(4));
                    let stamp = random(3) as u32 + 1;
                    known.raise(group, stamp);
                    let of_model = model.entry(group).or_default();
                    *of_model = stamp.max(*of_model);
                }
            }
            let [(own, mut all), (other, more)] = sides;
            for (group, stamp) in &more {
                let known = all.entry(*group).or_default();
                *known = (*stamp).max(*known);
            }
            let (mut joined, other) = (Arc::new(own), Arc::new(other));
            join(&mut joined, &other);
            assert_eq!(joined.0, all.into_iter().collect::<Vec<_>>());
            assert!(joined.has_all_of(&other));
        }
    }

    fn clocks(n: usize) -> Vec<Clock> {
        vec![Clock::new(); n]
    }

    #[test]
    fn a_barrier_of_all_lets_all_know_and_a_warps_only_its_lanes() {
        let mut c = clocks(64);
        let base = Arc::default();
        let warp: Vec<usize> = (0..32).collect();
        meet(&mut c, 5, &warp, |w| w == 0, false, &base);
        let actor = |i| Actor::new(5, i);
        assert!(c[3].knows(actor(3), actor(31), 1, &base));
        assert!(
            !c[3].knows(actor(3), actor(31), 2, &base)
                && !c[3].knows(actor(3), actor(32), 1, &base)
        );
        assert!(!c[40].knows(actor(40), actor(3), 1, &base));
        let all: Vec<usize> = (0..64).collect();
        meet(&mut c, 5, &all, |_| true, true, &base);
        assert!(
            c[40].knows(actor(40), actor(3), 2, &base)
                && !c[40].knows(actor(40), actor(3), 3, &base)
        );
        assert_eq!(c[40].now, 3);
    }

    #[test]
    fn some_lanes_know_each_other_alone() {
        let mut c = clocks(32);
        let base = Arc::default();
        meet(&mut c, 5, &[1, 2], |_| false, false, &base);
        let actor = |i| Actor::new(5, i);
        assert!(
            c[1].knows(actor(1), actor(2), 1, &base) && !c[1].knows(actor(1), actor(3), 1, &base)
        );
        // What lane 2 knows goes on to lane 3, and no more than that.
        meet(&mut c, 5, &[2, 3], |_| false, false, &base);
        assert!(
            c[3].knows(actor(3), actor(1), 1, &base) && !c[3].knows(actor(3), actor(1), 2, &base)
        );
    }

    #[test]
    fn what_is_released_is_known_and_later_deeds_are_not() {
        let mut c = clocks(2);
        let base = Arc::default();
        let [a, b] = [Actor::new(1, 0), Actor::new(2, 0)];
        let known = c[0].release(a, &base);
        assert!(!c[1].knows(b, a, 1, &base));
        c[1].acquire(&known, &base);
        assert!(c[1].knows(b, a, 1, &base) && !c[1].knows(b, a, 2, &base));
    }
}
