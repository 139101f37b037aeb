//! Faults that a user asks for, to test code on verbs: `create_cq@2`, `port-err@3s`,
//! `retry-exc:qp3@1000`. Their text is read here; the calls of verbs inject them.
//!
//! ```text
//! fail   CALL@WHEN                   the call fails
//! event  EVENT[:qpN]@WHEN            an asynchronous event is raised
//! wc     STATUS[:qpN]@WHEN           a completion has that status, and its queue pair goes to ERR
//! WHEN   7 | 300ms | 3s              the 7th of them, or the first after so long
//! ```
//!
//! Calls are counted by name, completions by queue pair; events are counted by completions of all
//! queue pairs. Each fault happens once.

use std::time::Duration;

/// Calls that can fail, without `ibv_`.
pub const CALLS: [&str; 17] = [
    "open_device",
    "query_device",
    "query_port",
    "query_gid",
    "alloc_pd",
    "reg_mr",
    "create_comp_channel",
    "create_cq",
    "resize_cq",
    "req_notify_cq",
    "create_srq",
    "create_ah",
    "create_qp",
    "modify_qp",
    "post_send",
    "post_recv",
    "post_srq_recv",
];

/// Events, with their codes of `enum ibv_event_type`.
pub const EVENTS: [(&str, u32); 11] = [
    ("qp-fatal", 1),
    ("qp-req-err", 2),
    ("qp-access-err", 3),
    ("comm-est", 4),
    ("sq-drained", 5),
    ("device-fatal", 8),
    ("port-active", 9),
    ("port-err", 10),
    ("lid-change", 11),
    ("pkey-change", 12),
    ("gid-change", 18),
];
/// Events up to this code are of a queue pair, the others of the port or the device.
const OF_QP_MAX: u32 = 5;

/// Statuses, with their codes of `enum ibv_wc_status`.
pub const STATUSES: [(&str, u32); 13] = [
    ("loc-len", 1),
    ("loc-qp-op", 2),
    ("loc-prot", 4),
    ("wr-flush", 5),
    ("bad-resp", 7),
    ("loc-access", 8),
    ("rem-inv-req", 9),
    ("rem-access", 10),
    ("rem-op", 11),
    ("retry-exc", 12),
    ("rnr-retry-exc", 13),
    ("fatal", 19),
    ("general", 21),
];

/// When a fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At the Nth, from 1 on.
    Count(u64),
    /// At the first after so long, counted from the program's first call of verbs.
    After(Duration),
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A call of [`CALLS`] fails.
    Fail(&'static str),
    /// An event of this code is raised.
    Event(u32),
    /// A completion has this code.
    Completion(u32),
}

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What happens.
    pub kind: Kind,
    /// At which queue pair: the Nth that the program has made, from 1 on. `None`: at any.
    pub queue_pair: Option<usize>,
    /// When.
    pub when: When,
}

/// A text that names no fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// A name that is not known.
    #[error("{text:?} names no {what}: known are {known}")]
    Name {
        /// As given.
        text: String,
        /// Call, event or status.
        what: &'static str,
        /// Those that there are.
        known: String,
    },
    /// Without `@`, or with something else behind it.
    #[error("{text:?} does not say when: write NAME@7 for the 7th, NAME@300ms or NAME@3s for the first after that time")]
    When {
        /// As given.
        text: String,
    },
    /// A place that it cannot have.
    #[error("{text:?} names a queue pair wrongly: a status may be of one queue pair, written NAME:qp3@WHEN for the third that the program makes, an event of a queue pair must be, and nothing else can")]
    Place {
        /// As given.
        text: String,
    },
}

fn when(text: &str) -> Option<When> {
    let of = |digits: &str, unit: u64| {
        let n: u64 = digits.parse().ok()?;
        Some(When::After(Duration::from_millis(n.checked_mul(unit)?)))
    };
    if let Some(digits) = text.strip_suffix("ms") {
        return of(digits, 1);
    }
    if let Some(digits) = text.strip_suffix('s') {
        return of(digits, 1000);
    }
    text.parse().ok().filter(|n| *n > 0).map(When::Count)
}

fn code(name: &str, known: &[(&'static str, u32)], what: &'static str) -> Result<u32, FaultError> {
    let found = known.iter().find(|k| k.0 == name).map(|k| k.1);
    found.ok_or_else(|| unknown(name, what, known.iter().map(|k| k.0)))
}

fn unknown<'a>(name: &str, what: &'static str, known: impl Iterator<Item = &'a str>) -> FaultError {
    FaultError::Name {
        text: name.into(),
        what,
        known: known.collect::<Vec<_>>().join(", "),
    }
}

/// Reads a list of faults, separated by commas.
fn list(
    text: &str,
    kind: impl Fn(&str) -> Result<Kind, FaultError>,
) -> Result<Vec<Fault>, FaultError> {
    let parts = text.split(',').map(str::trim).filter(|p| !p.is_empty());
    parts
        .map(|text| {
            let (rest, at) = text.split_once('@').unwrap_or((text, ""));
            let (name, place) = match rest.split_once(':') {
                Some((name, place)) => (name, Some(place)),
                None => (rest, None),
            };
            let kind = kind(name)?;
            let when = when(at).ok_or_else(|| FaultError::When { text: text.into() })?;
            let queue_pair = place.and_then(|p| p.strip_prefix("qp")?.parse().ok());
            let is_named = place.is_some();
            let fits = match kind {
                Kind::Fail(_) => !is_named,
                Kind::Event(code) => is_named == (code <= OF_QP_MAX),
                Kind::Completion(_) => true,
            };
            if !fits || is_named != queue_pair.is_some_and(|n: usize| n > 0) {
                return Err(FaultError::Place { text: text.into() });
            }
            Ok(Fault {
                kind,
                queue_pair,
                when,
            })
        })
        .collect()
}

/// Reads calls that are to fail.
///
/// # Errors
/// [`FaultError`].
pub fn failures(text: &str) -> Result<Vec<Fault>, FaultError> {
    list(text, |name| {
        let found = CALLS.into_iter().find(|c| *c == name);
        let found = found.ok_or_else(|| unknown(name, "call", CALLS.into_iter()));
        found.map(Kind::Fail)
    })
}

/// Reads events that are to be raised.
///
/// # Errors
/// [`FaultError`].
pub fn events(text: &str) -> Result<Vec<Fault>, FaultError> {
    list(text, |name| code(name, &EVENTS, "event").map(Kind::Event))
}

/// Reads statuses that completions are to have.
///
/// # Errors
/// [`FaultError`].
pub fn completions(text: &str) -> Result<Vec<Fault>, FaultError> {
    list(text, |name| {
        code(name, &STATUSES, "status").map(Kind::Completion)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_wrong_ones_are_named_with_what_there_is() {
        let fault = |kind, queue_pair, when| Fault {
            kind,
            queue_pair,
            when,
        };
        assert_eq!(
            failures("create_cq@2, reg_mr@500ms").unwrap(), // both are known
            [
                fault(Kind::Fail("create_cq"), None, When::Count(2)),
                fault(
                    Kind::Fail("reg_mr"),
                    None,
                    When::After(Duration::from_millis(500))
                ),
            ]
        );
        assert_eq!(
            events("port-err@3s,qp-fatal:qp2@7").unwrap(), // likewise
            [
                fault(Kind::Event(10), None, When::After(Duration::from_secs(3))),
                fault(Kind::Event(1), Some(2), When::Count(7)),
            ]
        );
        assert_eq!(
            completions("retry-exc:qp3@1000,fatal@1").unwrap(), // likewise
            [
                fault(Kind::Completion(12), Some(3), When::Count(1000)),
                fault(Kind::Completion(19), None, When::Count(1)),
            ]
        );
        let said = failures("create_qc@2").unwrap_err().to_string();
        assert!(said.contains("\"create_qc\" names no call") && said.contains("create_cq, "));
        let said = events("port-er@1s").unwrap_err().to_string();
        assert!(said.contains("no event") && said.contains("port-err"));
        let said = completions("retry@1").unwrap_err().to_string();
        assert!(said.contains("no status") && said.contains("retry-exc"));
        for text in [
            "reg_mr",
            "reg_mr@",
            "reg_mr@0",
            "reg_mr@-1",
            "reg_mr@1h",
            "reg_mr@s",
        ] {
            assert!(
                matches!(failures(text), Err(FaultError::When { .. })),
                "{text}"
            );
        }
        let huge = "reg_mr@18446744073709551615s";
        assert!(matches!(failures(huge), Err(FaultError::When { .. })));
        assert!(matches!(
            failures("reg_mr:qp1@1"),
            Err(FaultError::Place { .. })
        ));
        for text in [
            "port-err:qp1@1",
            "qp-fatal@1",
            "qp-fatal:qp0@1",
            "qp-fatal:1@1",
        ] {
            assert!(
                matches!(events(text), Err(FaultError::Place { .. })),
                "{text}"
            );
        }
        assert!(matches!(
            completions("fatal:cq1@1"),
            Err(FaultError::Place { .. })
        ));
        assert_eq!(failures(""), Ok(Vec::new()));
    }
}
