//! State of the bootstrap's server: connected ranks and open rounds. Time is an argument; no I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::message::{Answer, Contribution, Hello, RoundKind, NEW_RANK, NUMBERS_MAX, RANKS_MAX};

/// Distance between two rounds' numbers: a round may be divided into that many communicators.
const ID_STEP: u64 = 1 << 16;
/// Longest time-out that a member may ask for.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Most bytes of notes: an unauthenticated peer must not fill the memory.
const NOTES_MAX: usize = 2048;

/// Rounds of the same kind, tag and members are one.
type Key = (RoundKind, u64, Vec<u32>);

/// What a server that takes over must know of the servers before it.
#[derive(Debug, Clone, Default)]
pub(super) struct Past(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Results of rounds of survivors: a rank that asks again gets the same answer, and an excluded
    /// rank is refused.
    survivors: HashMap<Key, Answer>,
    /// One more than the highest number of a rank.
    numbers: u32,
}

impl Past {
    fn all(&self) -> MutexGuard<'_, Known> {
        // Nothing that holds the lock can panic half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records how a round ended for this member, which may serve others later.
    pub(super) fn remember(&self, kind: RoundKind, tag: u64, members: &[u32], done: &Answer) {
        if let Answer::Done { parts, .. } = done {
            parts.iter().for_each(|(r, _)| self.number(*r));
        }
        if kind == RoundKind::Survivors {
            let key = (kind, tag, members.to_vec());
            let known = &mut self.all().survivors;
            known.entry(key).or_insert_with(|| done.clone());
        }
    }

    /// Records that a number is in use.
    fn number(&self, rank: u32) {
        let known = &mut self.all().numbers;
        *known = (*known).max(rank + 1);
    }

    fn answer(&self, key: &Key, rank: u32) -> Option<Answer> {
        match self.all().survivors.get(key)? {
            Answer::Done { parts, .. } if !parts.iter().any(|(r, _)| *r == rank) => {
                Some(Answer::Excluded)
            }
            answer => Some(answer.clone()),
        }
    }
}

#[derive(Debug)]
struct Round {
    parts: BTreeMap<u32, Vec<u8>>,
    deadline: Duration,
    /// New ranks to be taken in.
    wanted: u32,
}

/// Members and rounds of one job.
#[derive(Debug)]
pub(super) struct Rounds {
    /// Ranks with which the job began; taken from the first member where the server was given none.
    ranks: Option<u32>,
    /// Port of the job's first server, from which the ranks derive common names.
    port: u16,
    /// Whether it took over from another server, and so may not know all numbers of ranks.
    standby: bool,
    here: BTreeSet<u32>,
    /// Ranks that have left or ended: they may not come back, because their peers have given them
    /// up.
    gone: BTreeSet<u32>,
    /// How ranks have ended, where a launcher has reported it.
    ends: BTreeMap<u32, String>,
    /// Why every further round fails.
    broken: Option<String>,
    open: HashMap<Key, Round>,
    past: Past,
    notes: String,
    next_id: u64,
}

/// Answers to be sent, by rank.
pub(super) type Answers = Vec<(u32, Answer)>;

impl Rounds {
    /// A job without members. `first_id` is random, so that two jobs' numbers differ. `port` is
    /// that of its first server, which this one is unless it is a `standby`.
    pub(super) fn new(
        ranks: Option<u32>,
        first_id: u64,
        past: Past,
        port: u16,
        standby: bool,
    ) -> Rounds {
        Rounds {
            ranks,
            port,
            standby,
            here: BTreeSet::new(),
            gone: BTreeSet::new(),
            ends: BTreeMap::new(),
            broken: None,
            open: HashMap::new(),
            past,
            notes: String::new(),
            next_id: first_id & !(ID_STEP - 1),
        }
    }

    /// Keeps a note for the error of ranks whose round fails.
    pub(super) fn note(&mut self, text: &str) {
        if self.notes.len() + text.len() < NOTES_MAX && !self.notes.contains(text) {
            if !self.notes.is_empty() {
                self.notes.push_str("; ");
            }
            self.notes.push_str(text);
        }
    }

    /// Admits a member that has proved that it holds the secret, and returns its rank and the
    /// answer; or says why not.
    pub(super) fn admit(&mut self, hello: &Hello) -> Result<(u32, Answer), String> {
        let Hello { rank, ranks, .. } = *hello;
        let why = match self.ranks {
            _ if self.broken.is_some() => return Err(self.broken.clone().unwrap_or_default()),
            _ if rank == NEW_RANK => return self.admit_new(),
            _ if ranks == 0 || ranks > RANKS_MAX => {
                format!("a job has 1 to {RANKS_MAX} ranks, not {ranks}")
            }
            Some(job) if job != ranks => {
                format!("rank {rank} says that the job has {ranks} ranks, but it has {job}")
            }
            _ if rank >= NUMBERS_MAX || (rank >= ranks && !self.standby) => {
                format!("rank {rank} does not exist in a job of {ranks}; ranks count from 0")
            }
            _ if self.here.contains(&rank) => {
                format!("rank {rank} was given twice; start each rank once")
            }
            _ if self.gone.contains(&rank) => {
                format!("rank {rank} has left the job already; make a new id for a new job")
            }
            _ => {
                self.ranks = Some(ranks);
                self.here.insert(rank);
                self.past.number(rank);
                return Ok((rank, Answer::Welcome));
            }
        };
        self.note(&why);
        Err(why)
    }

    /// Admits a new rank of the running job under a number that no rank had before.
    fn admit_new(&mut self) -> Result<(u32, Answer), String> {
        let Some(ranks) = self.ranks else {
            return Err("no rank of the job has come yet; start its ranks first".into());
        };
        let rank = self.numbers();
        if rank >= NUMBERS_MAX {
            return Err(format!(
                "the job has given {NUMBERS_MAX} numbers to ranks, which is all; make a new id for a new job"
            ));
        }
        self.here.insert(rank);
        self.past.number(rank);
        let port = self.port;
        Ok((rank, Answer::Entered { rank, ranks, port }))
    }

    /// One more than the highest number of a rank.
    fn numbers(&self) -> u32 {
        self.past.all().numbers.max(self.ranks.unwrap_or(0))
    }

    /// Whether members came and all of them have left.
    pub(super) fn is_over(&self) -> bool {
        self.here.is_empty() && !self.gone.is_empty()
    }

    /// Ranks that are connected.
    pub(super) fn here(&self) -> &BTreeSet<u32> {
        &self.here
    }

    /// A member's contribution.
    pub(super) fn contribute(&mut self, now: Duration, rank: u32, c: Contribution) -> Answers {
        let ranks = if self.standby {
            NUMBERS_MAX
        } else {
            self.numbers()
        };
        let sound = c.members.windows(2).all(|w| w[0] < w[1])
            && (c.kind != RoundKind::Join || c.members == [rank])
            && c.members.last().is_some_and(|l| *l < ranks)
            && c.members.contains(&rank);
        if !sound {
            let why = format!(
                "rank {rank} asked for a round of ranks {:?}, which must rise, exist, and include it",
                c.members
            );
            return vec![(rank, Answer::Refused(why))];
        }
        if let Some(why) = &self.broken {
            return vec![(rank, Answer::Refused(why.clone()))];
        }
        let tag = match c.kind {
            RoundKind::Join => 0,
            _ => c.tag,
        };
        let key = (c.kind, tag, c.members);
        if let Some(answer) = self.past.answer(&key, rank) {
            return vec![(rank, answer)];
        }
        let mut answers: Answers = Vec::new();
        for r in c.dead.into_iter().filter(|r| *r != rank && *r < ranks) {
            if !self.here.contains(&r) && self.gone.insert(r) {
                answers.extend(self.judge_all(now));
            }
        }
        let wanted = Duration::from_millis(c.timeout_ms.into()).min(TIMEOUT_MAX);
        let round = self.open.entry(key.clone()).or_insert_with(|| Round {
            parts: BTreeMap::new(),
            deadline: now + wanted,
            wanted: c.wanted,
        });
        // The shortest time-out counts: a member that gives up breaks the round for all.
        round.deadline = round.deadline.min(now + wanted);
        if round.wanted != c.wanted {
            let why = format!(
                "rank {rank} waits for {} new rank(s), ranks {:?} for {}; all must call it with the same number of ranks",
                c.wanted,
                round.parts.keys().collect::<Vec<_>>(),
                round.wanted
            );
            answers.extend(self.end(&key, &Answer::Refused(why.clone())));
            answers.push((rank, Answer::Refused(why)));
            return answers;
        }
        if round.parts.insert(rank, c.part).is_some() {
            let why = format!("rank {rank} contributed twice to one round");
            answers.push((rank, Answer::Refused(why)));
            return answers;
        }
        answers.extend(match key.0 {
            // Others may have waited for it.
            RoundKind::Join => self.judge_all(now),
            _ => self.judge(now, &key),
        });
        answers
    }

    /// A member has closed its connection.
    pub(super) fn leave(&mut self, now: Duration, rank: u32) -> Answers {
        if !self.here.remove(&rank) {
            return Vec::new();
        }
        self.gone.insert(rank);
        self.open.remove(&(RoundKind::Join, 0, vec![rank]));
        self.judge_all(now)
    }

    /// Records that a rank's process has ended, as its launcher reported; the rank may never have
    /// come.
    pub(super) fn ended(&mut self, now: Duration, rank: u32, how: String) -> Answers {
        self.here.remove(&rank);
        self.gone.insert(rank);
        self.ends.insert(rank, how);
        self.judge_all(now)
    }

    /// Ends all rounds, and those to come: the server itself cannot continue.
    pub(super) fn break_off(&mut self, why: String) -> Answers {
        let answer = Answer::Refused(why.clone());
        self.broken = Some(why);
        let waiting = std::mem::take(&mut self.open);
        waiting
            .into_values()
            .flat_map(|round| round.parts.into_keys())
            .filter(|r| self.here.contains(r))
            .map(|r| (r, answer.clone()))
            .collect()
    }

    fn judge_all(&mut self, now: Duration) -> Answers {
        let keys: Vec<Key> = self.open.keys().cloned().collect();
        keys.iter().flat_map(|k| self.judge(now, k)).collect()
    }

    /// Ends the rounds whose deadline has passed.
    pub(super) fn expire(&mut self, now: Duration) -> Answers {
        let due: Vec<Key> = self
            .open
            .iter()
            .filter(|(_, r)| r.deadline <= now)
            .map(|(k, _)| k.clone())
            .collect();
        due.iter().flat_map(|k| self.judge(now, k)).collect()
    }

    /// When [`Self::expire`] has something to do next.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.open.values().map(|r| r.deadline).min()
    }

    /// Ends the round if it can end now.
    fn judge(&mut self, now: Duration, key: &Key) -> Answers {
        let Some(round) = self.open.get(key) else {
            return Vec::new();
        };
        let (kind, tag, members) = key;
        let survivors = *kind == RoundKind::Survivors;
        let absent: Vec<u32> = members
            .iter()
            .copied()
            .filter(|m| {
                // A growth may wait for long: a member that ends meanwhile is noticed.
                let left = *kind == RoundKind::Grow && self.gone.contains(m);
                left || !round.parts.contains_key(m)
            })
            .collect();
        let (gone, late): (Vec<u32>, Vec<u32>) = absent.iter().partition(|m| self.gone.contains(m));
        let expired = round.deadline <= now;
        let new = match kind {
            RoundKind::Grow => self.new_ranks(round.wanted),
            _ => Vec::new(),
        };
        let complete = new.len() as u32 == round.wanted && *kind != RoundKind::Join;
        let answer =
            if (absent.is_empty() && complete) || (survivors && (late.is_empty() || expired)) {
                let id = self.next_id;
                self.next_id = id.wrapping_add(ID_STEP);
                // A survivor that contributed and then ended is none.
                let alive = |rank: &u32| !survivors || !self.gone.contains(rank);
                let mut parts: Vec<_> = round
                    .parts
                    .iter()
                    .filter(|(r, _)| alive(r))
                    .map(|(r, p)| (*r, p.clone()))
                    .collect();
                parts.extend(new.iter().cloned());
                parts.sort_unstable();
                Answer::Done { id, parts }
            } else if !survivors && !gone.is_empty() {
                let told = gone.iter().filter_map(|r| self.ends.get(r));
                let notes: Vec<&str> = told.map(String::as_str).collect();
                Answer::Gone {
                    notes: notes.join("; "),
                    ranks: gone,
                }
            } else if !expired {
                return Vec::new();
            } else if *kind == RoundKind::Join {
                Answer::Unwanted
            } else if late.is_empty() {
                Answer::Few {
                    came: new.len() as u32,
                    notes: self.notes.clone(),
                }
            } else {
                Answer::Missing {
                    ranks: late,
                    notes: self.notes.clone(),
                }
            };
        self.past.remember(*kind, *tag, members, &answer);
        let mut answers = self.end(key, &answer);
        if let Answer::Done { .. } = answer {
            for (rank, _) in new {
                answers.extend(self.end(&(RoundKind::Join, 0, vec![rank]), &answer));
            }
        }
        answers
    }

    /// Ends a round with this answer to all who have contributed.
    fn end(&mut self, key: &Key, answer: &Answer) -> Answers {
        let round = self.open.remove(key);
        let ranks = round.into_iter().flat_map(|r| r.parts.into_keys());
        ranks
            .filter(|r| self.here.contains(r))
            .map(|r| (r, answer.clone()))
            .collect()
    }

    /// The new ranks that wait to be taken in, lowest numbers first and no more than `wanted`, with
    /// their parts.
    fn new_ranks(&self, wanted: u32) -> Vec<(u32, Vec<u8>)> {
        let waiting = self.open.iter().filter(|(k, _)| k.0 == RoundKind::Join);
        let parts = waiting.flat_map(|(_, r)| r.parts.iter());
        let mut new: Vec<_> = parts.map(|(r, p)| (*r, p.clone())).collect();
        new.sort_unstable();
        new.truncate(wanted as usize);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(ranks: Option<u32>, past: Past) -> Rounds {
        Rounds::new(ranks, 1 << 40, past, 4711, false)
    }

    /// What a member that is admitted gets.
    fn admitted(rank: u32) -> Result<(u32, Answer), String> {
        Ok((rank, Answer::Welcome))
    }

    fn job(ranks: u32) -> Rounds {
        let mut r = first(None, Past::default());
        for rank in 0..ranks {
            assert_eq!(r.admit(&hello(rank, ranks)), admitted(rank));
        }
        r
    }

    fn hello(rank: u32, ranks: u32) -> Hello {
        Hello {
            rank,
            ranks,
            nonce: [0; 16],
        }
    }

    fn c(kind: RoundKind, members: &[u32], rank: u32) -> Contribution {
        Contribution {
            kind,
            tag: 1,
            members: members.to_vec(),
            dead: Vec::new(),
            timeout_ms: 1000,
            wanted: 0,
            part: vec![rank as u8 * 3],
        }
    }

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_round_ends_when_the_last_has_come_and_rounds_have_numbers_of_their_own() {
        let mut r = job(3);
        let mut ids = Vec::new();
        for _ in 0..2 {
            assert!(r
                .contribute(at(0), 2, c(RoundKind::All, &[0, 2], 2))
                .is_empty());
            let answers = r.contribute(at(1), 0, c(RoundKind::All, &[0, 2], 0));
            assert_eq!(answers.len(), 2);
            let Answer::Done { id, parts } = &answers[0].1 else {
                panic!("{answers:?}")
            };
            assert_eq!(*parts, [(0, vec![0]), (2, vec![6])]);
            ids.push(*id);
        }
        assert_eq!(ids[1] - ids[0], ID_STEP);
    }

    #[test]
    fn late_and_departed_ranks_are_named() {
        let mut r = job(4);
        let all = [0, 1, 2, 3];
        r.contribute(at(0), 0, c(RoundKind::All, &all, 0));
        r.contribute(at(5), 2, c(RoundKind::All, &all, 2));
        assert_eq!(r.next_deadline(), Some(at(1000)));
        assert!(r.expire(at(999)).is_empty());
        let answers = r.expire(at(1000));
        let late = Answer::Missing {
            ranks: vec![1, 3],
            notes: String::new(),
        };
        assert_eq!(answers, [(0, late.clone()), (2, late)]);
        r.contribute(at(2000), 0, c(RoundKind::All, &all, 0));
        let gone = |notes: &str| Answer::Gone {
            ranks: vec![3],
            notes: notes.into(),
        };
        assert_eq!(r.leave(at(2001), 3), [(0, gone(""))]);
        // Its launcher reports later how it ended.
        assert_eq!(r.ended(at(2002), 3, "rank 3 fell".into()), []);
        let again = r.contribute(at(2003), 0, c(RoundKind::All, &all, 0));
        assert_eq!(again, [(0, gone("rank 3 fell"))]);
    }

    #[test]
    fn a_rank_that_ends_before_it_comes_is_not_waited_for() {
        let mut r = first(Some(3), Past::default());
        for rank in [0, 2] {
            assert_eq!(r.admit(&hello(rank, 3)), admitted(rank));
            assert_eq!(
                r.contribute(at(0), rank, c(RoundKind::All, &[0, 1, 2], rank)),
                []
            );
        }
        let answers = r.ended(at(1), 1, "rank 1 ended with status 7".into());
        let gone = Answer::Gone {
            ranks: vec![1],
            notes: "rank 1 ended with status 7".into(),
        };
        assert_eq!(answers, [(0, gone.clone()), (2, gone)]);
        assert!(r.admit(&hello(1, 3)).is_err_and(|e| e.contains("left")));
    }

    #[test]
    fn a_server_that_cannot_go_on_refuses_waiting_and_new_members() {
        let mut r = job(2);
        r.contribute(at(0), 0, c(RoundKind::All, &[0, 1], 0));
        let told = Answer::Refused("no descriptors".into());
        assert_eq!(r.break_off("no descriptors".into()), [(0, told.clone())]);
        let next = r.contribute(at(1), 1, c(RoundKind::All, &[0, 1], 1));
        assert_eq!(next, [(1, told)]);
    }

    #[test]
    fn survivors_go_on_without_ended_and_late_ranks() {
        let mut r = job(4);
        let all = [0, 1, 2, 3];
        r.leave(at(0), 1);
        r.contribute(at(1), 0, c(RoundKind::Survivors, &all, 0));
        r.contribute(at(1), 2, c(RoundKind::Survivors, &all, 2));
        let answers = r.expire(at(1001));
        let Answer::Done { parts, .. } = &answers[0].1 else {
            panic!("{answers:?}")
        };
        assert_eq!(*parts, [(0, vec![0]), (2, vec![6])]);
        // Rank 3 comes too late.
        assert_eq!(
            r.contribute(at(1500), 3, c(RoundKind::Survivors, &all, 3)),
            [(3, Answer::Excluded)]
        );
    }

    #[test]
    fn a_new_server_accepts_reports_of_ended_ranks_but_not_of_joined_ones() {
        let mut r = Rounds::new(Some(4), 1 << 40, Past::default(), 4711, true);
        let all = [0, 1, 2, 3];
        for rank in [1, 3] {
            assert_eq!(r.admit(&hello(rank, 4)), admitted(rank));
        }
        r.contribute(at(0), 3, c(RoundKind::Survivors, &all, 3));
        let found = Contribution {
            dead: vec![0, 2, 3],
            ..c(RoundKind::Survivors, &all, 1)
        };
        let answers = r.contribute(at(1), 1, found);
        let Answer::Done { id, parts } = &answers[0].1 else {
            panic!("{answers:?}")
        };
        assert_eq!(*parts, [(1, vec![3]), (3, vec![9])]);
        // Asked again, it says the same; another server of the same past as well.
        let again = r.contribute(at(2), 3, c(RoundKind::Survivors, &all, 3));
        assert!(
            matches!(&again[0].1, Answer::Done { id: i, .. } if i == id),
            "{again:?}"
        );
        assert!(r.admit(&hello(2, 4)).is_err_and(|e| e.contains("left")));
        let mut next = Rounds::new(Some(4), 1 << 41, r.past.clone(), 4711, true);
        assert_eq!(next.admit(&hello(2, 4)), admitted(2));
        let late = next.contribute(at(3), 2, c(RoundKind::Survivors, &all, 2));
        assert_eq!(late, [(2, Answer::Excluded)]);
    }

    fn grow(r: &mut Rounds, ms: u64, rank: u32, members: &[u32], wanted: u32) -> Answers {
        let c = c(RoundKind::Grow, members, rank);
        r.contribute(at(ms), rank, Contribution { wanted, ..c })
    }

    fn join(r: &mut Rounds, ms: u64) -> (u32, Answers) {
        let (rank, _) = r.admit(&hello(NEW_RANK, 0)).expect("a running job");
        let alone = Contribution {
            tag: 0,
            ..c(RoundKind::Join, &[rank], rank)
        };
        (rank, r.contribute(at(ms), rank, alone))
    }

    #[test]
    fn new_ranks_get_numbers_of_their_own_and_are_taken_in_when_enough_have_come() {
        let mut r = first(Some(2), Past::default());
        let early = first(None, Past::default()).admit(&hello(NEW_RANK, 0));
        assert!(early.is_err_and(|e| e.contains("no rank of the job")));
        assert_eq!(r.admit(&hello(0, 2)), admitted(0));
        assert_eq!(r.admit(&hello(1, 2)), admitted(1));
        let entered = Answer::Entered {
            rank: 2,
            ranks: 2,
            port: 4711,
        };
        assert_eq!(r.admit(&hello(NEW_RANK, 0)), Ok((2, entered)));
        // It ends before it joins; its number is not given again.
        r.leave(at(0), 2);
        assert_eq!(join(&mut r, 1), (3, vec![]));
        assert_eq!(grow(&mut r, 2, 1, &[0, 1], 2), []);
        assert_eq!(grow(&mut r, 3, 0, &[0, 1], 2), []);
        let (rank, answers) = join(&mut r, 4);
        assert_eq!(rank, 4);
        let to: Vec<u32> = answers.iter().map(|a| a.0).collect();
        assert_eq!(to, [0, 1, 3, 4]);
        let Answer::Done { parts, .. } = &answers[0].1 else {
            panic!("{answers:?}")
        };
        let all: Vec<u32> = parts.iter().map(|p| p.0).collect();
        assert_eq!(all, [0, 1, 3, 4]);
        assert!(answers.iter().all(|a| a.1 == answers[0].1));
        // New ranks are members like the others, and a standby server knows their numbers.
        let both = r.contribute(at(5), 3, c(RoundKind::All, &[0, 3], 3));
        assert_eq!(both, []);
        assert_eq!(
            r.contribute(at(5), 0, c(RoundKind::All, &[0, 3], 0)).len(),
            2
        );
        let mut next = Rounds::new(Some(2), 1 << 41, r.past.clone(), 4711, true);
        assert_eq!(next.admit(&hello(4, 2)), admitted(4));
        assert!(matches!(
            next.admit(&hello(NEW_RANK, 0)),
            Ok((5, Answer::Entered { port: 4711, .. }))
        ));
    }

    #[test]
    fn a_growth_without_enough_ranks_fails_for_all_and_later_takes_those_that_wait() {
        let mut r = job(2);
        let (new, _) = join(&mut r, 500);
        assert_eq!(grow(&mut r, 0, 0, &[0, 1], 2), []);
        assert_eq!(grow(&mut r, 1, 1, &[0, 1], 2), []);
        let few = Answer::Few {
            came: 1,
            notes: String::new(),
        };
        assert_eq!(r.expire(at(1000)), [(0, few.clone()), (1, few)]);
        // Ranks that want different numbers are refused, all of them.
        assert_eq!(grow(&mut r, 1100, 0, &[0, 1], 2), []);
        let refused = grow(&mut r, 1100, 1, &[0, 1], 1);
        assert_eq!(refused.len(), 2);
        for (_, answer) in refused {
            assert!(matches!(answer, Answer::Refused(why) if why.contains("same number")));
        }
        assert_eq!(grow(&mut r, 1200, 0, &[0, 1], 1), []);
        assert_eq!(grow(&mut r, 1200, 1, &[0, 1], 1).len(), 3);
        // A member that ends is named; one that no round takes in is told so.
        let (late, _) = join(&mut r, 1300);
        assert_eq!((new, late), (2, 3));
        assert_eq!(grow(&mut r, 1300, 0, &[0, 1, 2], 3), []);
        let answers = r.leave(at(1301), 1);
        assert!(matches!(&answers[..], [(0, Answer::Gone { ranks, .. })] if *ranks == [1]));
        assert_eq!(r.expire(at(2300)), [(3, Answer::Unwanted)]);
    }

    #[test]
    fn a_contradictory_member_is_refused_and_noted_to_the_others_at_the_deadline() {
        let mut r = job(2);
        for (h, word) in [
            (hello(0, 2), "twice"),
            (hello(1, 3), "the job has 3 ranks, but it has 2"),
            (hello(0, 0), "1 to 4096"),
        ] {
            let why = r.admit(&h).expect_err(word);
            assert!(why.contains(word), "{why}");
        }
        r.contribute(at(0), 0, c(RoundKind::All, &[0, 1], 0));
        let answers = r.expire(at(1000));
        assert!(
            matches!(&answers[0].1, Answer::Missing { ranks, notes } if *ranks == [1] && notes.contains("3 ranks")),
            "{answers:?}"
        );
        for members in [&[][..], &[1, 0], &[0, 7], &[1]] {
            let answers = r.contribute(at(0), 0, c(RoundKind::All, members, 0));
            assert!(matches!(answers[0].1, Answer::Refused(_)), "{members:?}");
        }
        r.leave(at(0), 0);
        assert!(r.admit(&hello(0, 2)).is_err_and(|e| e.contains("left")));
        assert!(!r.is_over());
        r.leave(at(0), 1);
        assert!(r.is_over());
    }
}
