//! `--explain-protocol`: how messages of each size travel to another rank, and why.

use ringbell::comm::{CollectiveKind, CommInfo, Terms, Traffic};

/// Lines for the report of a rank: the terms of the first other rank that is connected, then the
/// choice for a message of each of these sizes in bytes, by the function that the NIC chooses with.
pub(super) fn lines(
    kind: CollectiveKind,
    info: &CommInfo,
    sizes: impl Iterator<Item = u64>,
) -> Vec<String> {
    let mut peers = info.peers.iter();
    let peer = peers.find_map(|p| Some((p.rank, p.transport?, p.terms?)));
    let Some((rank, transport, terms)) = peer else {
        return vec!["protocols: none, as no other rank is connected".into()];
    };
    let (traffic, what) = match kind {
        CollectiveKind::Send => (Traffic::User, "messages"),
        _ => (
            Traffic::Agreed,
            "messages of collectives (the direct path sends none)",
        ),
    };
    let head = format!(
        "protocols of {what} to rank {rank} over {transport}; costs in bytes copied. {}",
        offered(&terms, traffic)
    );
    let each = sizes.map(|len| line(&terms, len, traffic));
    std::iter::once(head).chain(each).collect()
}

/// What link and peer offer.
fn offered(terms: &Terms, traffic: Traffic) -> String {
    let buffers = match terms.buffer {
        0 => "The peer keeps no buffers".into(),
        n => format!("The peer's buffers have {n} bytes"),
    };
    let asking = match terms.asking {
        u64::MAX => "asking for a receive costs more than any copy".into(),
        n => format!("asking for a receive costs {n}"),
    };
    let announcing = match (terms.announcing, traffic) {
        (None, _) => "the transport announces no receives".into(),
        (Some(_), Traffic::User) => "receives of any message are not announced".into(),
        (Some(n), Traffic::Agreed) => format!("announcing a receive costs {n}"),
    };
    format!("{buffers}; {asking}; {announcing}")
}

/// The choice for one length.
fn line(terms: &Terms, len: u64, traffic: Traffic) -> String {
    let chosen = terms.choose(len, traffic, true);
    let costs = terms.candidates(len, traffic).map(|c| {
        let cost = match c.cost {
            None => "cannot".into(),
            Some(u64::MAX) => "more than any copy".into(),
            Some(n) => n.to_string(),
        };
        format!("{} {cost}", c.protocol.name())
    });
    let without = match terms.choose(len, traffic, false) {
        other if other == chosen => String::new(),
        other => format!("; {} while no buffer is free", other.name()),
    };
    let costs = costs.join(", ");
    format!("{len:>12} B  {:<10} ({costs}{without})", chosen.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_the_choice_and_what_else_it_would_cost() {
        let terms = Terms {
            buffer: 65_536,
            asking: u64::MAX,
            announcing: Some(32_768),
        };
        assert_eq!(
            line(&terms, 1024, Traffic::Agreed).trim_start(),
            "1024 B  eager      (inline cannot, eager 1024, rendezvous more than any copy, \
             written 32768; rendezvous while no buffer is free)"
        );
        assert_eq!(
            line(&terms, 65_540, Traffic::Agreed).trim_start(),
            "65540 B  written    (inline cannot, eager cannot, rendezvous more than any copy, \
             written 32768)"
        );
        assert_eq!(
            line(&terms, 0, Traffic::User).trim_start(),
            "0 B  inline     (inline 0, eager 0, rendezvous more than any copy, written cannot)"
        );
        let none = Terms {
            buffer: 0,
            asking: 8192,
            announcing: None,
        };
        assert_eq!(
            offered(&none, Traffic::User),
            "The peer keeps no buffers; asking for a receive costs 8192; the transport announces \
             no receives"
        );
    }
}
