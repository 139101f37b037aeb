//! States of a queue pair, and which follows which (IBTA vol. 1 §10.3.1, figure 124).

/// State of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// RESET: just made. Nothing is processed.
    Reset,
    /// INIT: receives may be posted, packets are dropped.
    Init,
    /// RTR, ready to receive: requests are answered.
    Rtr,
    /// RTS, ready to send: requests are sent as well.
    Rts,
    /// SQD, send queue drained: requests are answered; new ones wait.
    Sqd,
    /// SQE, send queue error: unreliable services alone get there.
    Sqe,
    /// ERR: all that was posted is flushed.
    Err,
}

impl State {
    /// All states.
    pub const ALL: [State; 7] = [
        State::Reset,
        State::Init,
        State::Rtr,
        State::Rts,
        State::Sqd,
        State::Sqe,
        State::Err,
    ];

    /// The states to which a program may take the queue pair.
    pub const fn next(self) -> &'static [State] {
        match self {
            State::Reset => &[State::Init],
            State::Init => &[State::Init, State::Rtr, State::Reset, State::Err],
            State::Rtr => &[State::Rts, State::Reset, State::Err],
            State::Rts => &[State::Rts, State::Sqd, State::Reset, State::Err],
            State::Sqd => &[State::Sqd, State::Rts, State::Reset, State::Err],
            State::Sqe => &[State::Rts, State::Reset, State::Err],
            State::Err => &[State::Reset],
        }
    }

    /// Whether requests of the peer are answered.
    pub const fn answers(self) -> bool {
        matches!(self, State::Rtr | State::Rts | State::Sqd | State::Sqe)
    }

    /// Whether requests are posted and sent.
    pub const fn requests(self) -> bool {
        matches!(self, State::Rts | State::Sqd)
    }

    /// Checks a change.
    ///
    /// # Errors
    /// [`BadTransition`] names both states and those that are possible.
    pub fn change_to(self, to: State) -> Result<State, BadTransition> {
        match self.next().contains(&to) {
            true => Ok(to),
            false => Err(BadTransition { from: self, to }),
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            State::Reset => "RESET",
            State::Init => "INIT",
            State::Rtr => "RTR",
            State::Rts => "RTS",
            State::Sqd => "SQD",
            State::Sqe => "SQE",
            State::Err => "ERR",
        })
    }
}

/// A change of state that a queue pair does not make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a queue pair in {from} cannot go to {to}; from {from} it goes to {}", names(from.next()))]
pub struct BadTransition {
    /// Its state.
    pub from: State,
    /// The state asked for.
    pub to: State,
}

fn names(states: &[State]) -> String {
    let names: Vec<_> = states.iter().map(State::to_string).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_by_naming_both_states() {
        let mut allowed = 0;
        for from in State::ALL {
            for to in State::ALL {
                match from.change_to(to) {
                    Ok(now) => {
                        assert_eq!(now, to);
                        allowed += 1;
                    }
                    Err(e) => {
                        let text = e.to_string();
                        assert!(
                            text.contains(&format!("in {from} cannot go to {to};")),
                            "{text}"
                        );
                    }
                }
            }
        }
        assert_eq!(allowed, 1 + 4 + 3 + 4 + 4 + 3 + 1);
    }
}
