//! Faults that the user has asked for (`ringbell verbs --fail`, `--event`, `--wc`), where calls
//! meet them.
#![allow(clippy::disallowed_methods)] // Faults by time.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use ringbell_roce::verbs::faults::{self, Fault, Kind, When};
use ringbell_roce::verbs::VerbsError;

use crate::abi::{self, Wc};
use crate::events;
use crate::refusal::say;

/// Returns from a call that is to fail by the user's wish: with a null pointer (`object`), or with
/// its error.
macro_rules! fail {
    (object $call:literal) => {
        if let Some(code) = crate::faults::fails($call) {
            return crate::refusal::refuse(code);
        }
    };
    ($call:literal) => {
        if let Some(code) = crate::faults::fails($call) {
            crate::refusal::set_errno(code);
            return code;
        }
    };
}

/// A fault, and how far it is from happening.
struct Planned {
    fault: Fault,
    count: AtomicU64,
    is_over: AtomicBool,
}

impl Planned {
    /// Counts one more of what it waits for. Whether it happens now.
    fn happens(&self, plan: &Plan) -> bool {
        let is_due = match self.fault.when {
            When::Count(n) => self.count.fetch_add(1, Ordering::Relaxed) + 1 == n,
            When::After(time) => plan.start.elapsed() >= time,
        };
        is_due && !self.is_over.swap(true, Ordering::Relaxed)
    }
}

/// Takes a queue pair of ours to the state of error.
pub(crate) type ToError = unsafe fn(*mut abi::Qp) -> Result<(), VerbsError>;

/// A queue pair that exists.
#[derive(Debug, Clone, Copy)]
struct Pair {
    at: usize,
    /// Its number on the wire, which its completions have.
    number: u32,
    /// Address of its context, which gets its events.
    context: usize,
    to_error: ToError,
}

struct Plan {
    start: Instant,
    faults: Vec<Planned>,
    /// Queue pairs in the order in which they were made; `None` of those that were destroyed.
    pairs: Mutex<Vec<Option<Pair>>>,
}

/// `None`: no fault is asked for.
fn plan() -> Option<&'static Plan> {
    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
    PLAN.get_or_init(|| {
        type Read = fn(&str) -> Result<Vec<Fault>, faults::FaultError>;
        let all: [(&str, Read); 3] = [
            ("RINGBELL_VERBS_FAIL", faults::failures),
            ("RINGBELL_VERBS_EVENT", faults::events),
            ("RINGBELL_VERBS_WC", faults::completions),
        ];
        let mut found = Vec::new();
        for (name, read) in all {
            match read(&std::env::var(name).unwrap_or_default()) {
                Ok(some) => found.extend(some),
                Err(e) => say(format_args!("{name} is ignored: {e}")),
            }
        }
        (!found.is_empty()).then(|| Plan {
            start: Instant::now(),
            faults: found
                .into_iter()
                .map(|fault| Planned {
                    fault,
                    count: AtomicU64::new(0),
                    is_over: AtomicBool::new(false),
                })
                .collect(),
            pairs: Mutex::default(),
        })
    })
    .as_ref()
}

/// The error of a call that is to fail now.
pub(crate) fn fails(call: &str) -> Option<c_int> {
    let plan = plan()?;
    let of_call = |p: &&Planned| matches!(p.fault.kind, Kind::Fail(name) if name == call);
    let mut fails = false;
    // All of them count this call.
    for p in plan.faults.iter().filter(of_call) {
        fails |= p.happens(plan);
    }
    if !fails {
        return None;
    }
    say(format_args!("ibv_{call} fails, as --fail asked"));
    Some(match call.starts_with("query") {
        true => libc::EIO,
        false => libc::ENOMEM,
    })
}

/// Remembers a queue pair as the next one.
///
/// # Safety
/// It was just made.
#[allow(unsafe_code)] // A queue pair by its address.
pub(crate) unsafe fn made(qp: *mut abi::Qp, to_error: ToError) {
    let Some(plan) = plan() else { return };
    // SAFETY: the caller's contract.
    let (number, context) = unsafe { ((*qp).qp_num, (*qp).context.addr()) };
    lock(plan).push(Some(Pair {
        at: qp.expose_provenance(),
        number,
        context,
        to_error,
    }));
}

/// Forgets a queue pair that is about to be destroyed, with its events that the program has not
/// read.
pub(crate) fn destroyed(qp: *mut abi::Qp) {
    let Some(plan) = plan() else { return };
    let mut pairs = lock(plan);
    for known in pairs.iter_mut() {
        *known = known.filter(|pair| pair.at != qp.addr());
    }
    // Under the lock: no event of it is raised any more.
    events::forget(qp.addr() as u64);
}

fn lock(plan: &Plan) -> std::sync::MutexGuard<'_, Vec<Option<Pair>>> {
    plan.pairs.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queue pair that a fault names: the first has number 1.
fn named(pairs: &[Option<Pair>], number: usize) -> Option<Pair> {
    *pairs.get(number.checked_sub(1)?)?
}

/// A completion that a program is about to read.
pub(crate) fn completed(wc: &mut Wc) {
    let Some(plan) = plan() else { return };
    for p in &plan.faults {
        match (p.fault.kind, p.fault.when) {
            (Kind::Completion(status), _) => complete(plan, p, status, wc),
            // Those by time have a thread.
            (Kind::Event(_), When::Count(_)) if p.happens(plan) => raise(plan, p),
            _ => {}
        }
    }
}

/// Gives a completion a status, if it is the one that the fault waits for.
#[allow(unsafe_code)] // A queue pair by its address.
fn complete(plan: &Plan, p: &Planned, status: u32, wc: &mut Wc) {
    // Held to the end: a queue pair is forgotten under it before it is destroyed.
    let pairs = lock(plan);
    let pair = match p.fault.queue_pair {
        Some(n) => named(&pairs, n).filter(|pair| pair.number == wc.qp_num),
        None => {
            let mut known = pairs.iter().flatten();
            known.find(|pair| pair.number == wc.qp_num).copied()
        }
    };
    let Some(pair) = pair.filter(|_| p.happens(plan)) else {
        return;
    };
    say(format_args!(
        "a completion of queue pair {:#x} gets status {status}, as --wc asked",
        wc.qp_num
    ));
    wc.status = status;
    let at = std::ptr::with_exposed_provenance_mut(pair.at);
    // SAFETY: it exists as long as `pairs` is locked.
    let changed = unsafe { (pair.to_error)(at) };
    if let Err(e) = changed {
        say(format_args!("its queue pair does not go to ERR: {e}"));
    }
}

fn raise(plan: &Plan, p: &Planned) {
    let Kind::Event(code) = p.fault.kind else {
        return;
    };
    // Held to the end, as in `complete`.
    let pairs = lock(plan);
    let (element, to) = match p.fault.queue_pair {
        Some(n) => match named(&pairs, n) {
            Some(pair) => (pair.at as u64, Some(pair.context)),
            None => {
                return say(format_args!(
                    "event {code} is not raised: there is no queue pair {n} (any more)"
                ))
            }
        },
        // The port.
        None => (1, None),
    };
    say(format_args!("event {code} is raised, as --event asked"));
    events::raise(code as c_int, element, to);
}

/// Starts the thread that raises events by time, once.
pub(crate) fn start() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    let Some(plan) = plan() else { return };
    let of_time = |p: &&Planned| {
        matches!(
            (p.fault.kind, p.fault.when),
            (Kind::Event(_), When::After(_))
        )
    };
    if !plan.faults.iter().any(|p| of_time(&p)) || STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let thread = std::thread::Builder::new().name("ringbell-faults".into());
    let started = thread.spawn(move || {
        let mut all: Vec<_> = plan.faults.iter().filter(of_time).collect();
        let time = |p: &&Planned| match p.fault.when {
            When::After(time) => time,
            When::Count(_) => std::time::Duration::ZERO,
        };
        all.sort_by_key(time);
        for p in all {
            std::thread::sleep(time(&p).saturating_sub(plan.start.elapsed()));
            raise(plan, p);
        }
    });
    if let Err(e) = started {
        say(format_args!(
            "the events of --event are not raised: no thread: {e}"
        ));
    }
}
