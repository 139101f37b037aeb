//! Collectives that are simulated, by name.

use ringbell::comm::CollectiveKind;

const KINDS: [(&str, CollectiveKind); 6] = [
    ("all-reduce", CollectiveKind::AllReduce),
    ("all-gather", CollectiveKind::AllGather),
    ("reduce-scatter", CollectiveKind::ReduceScatter),
    ("broadcast", CollectiveKind::Broadcast),
    ("reduce", CollectiveKind::Reduce),
    ("all-to-all", CollectiveKind::AllToAll),
];

/// A collective by its name.
pub(super) fn kind(text: &str) -> Result<CollectiveKind, String> {
    let known = KINDS.iter().find(|k| k.0 == text);
    known.map(|k| k.1).ok_or_else(|| {
        let names = KINDS.map(|k| k.0).join(", ");
        format!("`{text}` is not simulated; write one of {names}")
    })
}

/// Its name.
pub(super) fn name(kind: CollectiveKind) -> &'static str {
    let known = KINDS.iter().find(|k| k.1 == kind);
    known.map_or("", |k| k.0)
}
