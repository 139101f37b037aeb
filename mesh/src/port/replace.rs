//! Replacing the tables of a running mesh: what [`Plans`] decide is done with routes and packets.
//!
//! Old and new tables have channels of their own, so that packets of both are on their way together
//! and none depends on the other kind: a packet keeps its channel until it has arrived.

use ringbell_net::NicTime;
use ringbell_routes::check::check;
use ringbell_routes::document::Document;
use ringbell_routes::route::Routes;
use ringbell_routes::topology::NodeId;

use super::MeshPort;
use crate::buffers::QUEUES_MAX;
use crate::control::Control;
use crate::error::ReplaceError;
use crate::head::{Kind, GROWTH, HEAD};
use crate::plan::{Id, Plans, Say};
use crate::replacing::Wish;

/// Interval at which an open replacement is looked at: 1 ms.
const STEP_NS: u64 = 1_000_000;
/// Channels into which nothing has come for so long have nothing on its way: 100 ms. What comes
/// later all the same is dropped, so that no circle can close.
const QUIET_NS: u64 = 100_000_000;

impl MeshPort {
    /// A handle by which the tables of the network are replaced while the port is a NIC's.
    pub fn control(&self) -> Control {
        self.replacing.control.clone()
    }

    /// Longest body of a frame on every wire.
    fn body_max(&self) -> usize {
        self.capabilities.mtu + GROWTH - HEAD
    }

    /// Tables of a text, once their proof holds for this network.
    fn sound(&self, text: &str) -> Result<Routes, String> {
        let topology = self.network.topology();
        let document = Document::parse(text).map_err(|e| e.to_string())?;
        let routes = Routes::given(document.read(topology)?);
        check(
            topology,
            &routes.tables,
            &routes.proof,
            self.config.channels,
        )
        .map_err(|why| why.text(topology))?;
        let (slots, depth) = (routes.proof.slots(), self.config.depth);
        match usize::from(slots) <= depth {
            true => Ok(routes),
            false => Err(format!(
                "the tables need {slots} slots of a channel, and it has {depth}"
            )),
        }
    }

    /// The name of a node.
    fn name(&self, node: NodeId) -> String {
        self.network.topology().nodes()[node.index()].name.clone()
    }

    /// The program wants other tables. They wait for another node's that are not decided, or whose
    /// end has not been told here.
    #[cold]
    fn propose(&mut self, now: NicTime) {
        if let Some(wanted) = self.replacing.control.take() {
            let until = now.plus(wanted.patience);
            self.replacing.wish = None;
            match self.sound(&wanted.text) {
                Ok(routes) => {
                    let text = wanted.text;
                    self.replacing.wish = Some(Wish {
                        text,
                        routes,
                        until,
                    });
                }
                Err(why) => {
                    let refused = Err(ReplaceError::Refused { why });
                    self.replacing.control.end(refused);
                }
            }
        }
        let Some(wish) = self.replacing.wish.take() else {
            return;
        };
        let nodes = self.network.topology().nodes().len();
        let most = self.body_max();
        let refused = |why| Err(ReplaceError::Refused { why });
        let other = self.replacing.plans.open().filter(|id| {
            let by = id.proposer();
            by != self.config.node && self.network.next(by).is_some()
        });
        let outcome = match other {
            Some(_) if now < wish.until => {
                self.replacing.wish = Some(wish);
                return;
            }
            Some(id) => Err(ReplaceError::UnderWay {
                node: self.name(id.proposer()),
            }),
            None if Plans::longest(nodes) > most => refused(format!(
                "{nodes} nodes are too many for packets of {most} bytes"
            )),
            None => self.network.fits(&wish.routes).or_else(refused),
        };
        if outcome.is_err() {
            return self.replacing.control.end(outcome);
        }
        let spare = self.network.spare();
        let Wish {
            text,
            routes,
            until,
        } = wish;
        self.replacing
            .plans
            .propose(text.into_bytes(), routes, spare, until);
    }

    /// A neighbour has said something of replacements.
    pub(super) fn heard_plan(
        &mut self,
        now: NicTime,
        wire: usize,
        kind: Kind,
        number: u32,
        body: &[u8],
    ) {
        let (network, me) = (&self.network, self.config.node);
        let has_way = |node| node == me || network.next(node).is_some();
        match kind {
            Kind::State => self.replacing.plans.told(wire, body, has_way),
            Kind::Ask => {
                let most = self.body_max();
                if let Some(part) = self.replacing.plans.answer(Id(number), body, most) {
                    self.wires[wire].tell_plan(now, Kind::Part, number, &part);
                }
            }
            _ => {
                if let Some((id, text)) = self.replacing.plans.part(wire, Id(number), body) {
                    let routes = std::str::from_utf8(&text).map_err(|e| e.to_string());
                    let routes = routes.and_then(|text| self.sound(text));
                    let name = self.name(me);
                    let routes = routes.map_err(|why| format!("{name}: {why}"));
                    self.replacing.plans.fetched(id, text, routes);
                }
            }
        }
        self.replacing.is_busy = true;
    }

    /// Moves an open replacement on.
    #[inline]
    pub(super) fn replace(&mut self, now: NicTime) {
        if self.replacing.is_asked() {
            self.propose(now);
            self.replacing.is_busy = true;
        }
        if self.replacing.is_busy {
            self.decide(now);
        }
    }

    #[cold]
    fn decide(&mut self, now: NicTime) {
        if let Some((id, routes)) = self.replacing.plans.behind() {
            if !self.network.has(id) {
                self.clear(now, id.half());
                self.network.lay(id, routes);
            }
            self.commit(now, id);
        }
        if let Some((id, routes)) = self.replacing.plans.to_hold() {
            let routes = routes.clone();
            let fits = match id.half() == self.network.spare() {
                true => self.network.fits(&routes),
                false => Err("other tables are in use here than at the proposer".into()),
            };
            match fits {
                Ok(()) if self.is_in_use(now, id.half()) => {}
                Ok(()) => {
                    self.network.lay(id, routes);
                    self.set_ways();
                    self.replacing.plans.held(Ok(()));
                }
                Err(why) => {
                    let why = format!("{}: {why}", self.name(self.config.node));
                    self.replacing.plans.held(Err(why));
                }
            }
        }
        let (network, me) = (&self.network, self.config.node);
        let has_way = |node| node == me || network.next(node).is_some();
        let name = |node: NodeId| network.topology().nodes()[node.index()].name.clone();
        match self.replacing.plans.decided(now, has_way, name) {
            Some(Ok(id)) => {
                self.commit(now, id);
                self.replacing.control.end(Ok(()));
            }
            Some(Err(why)) => {
                tracing::warn!(node = me.0, why, "the routes are not replaced");
                self.replacing
                    .control
                    .end(Err(ReplaceError::Refused { why }));
            }
            None => {}
        }
        self.talk(now);
    }

    /// Whether packets stand in the channels of a half, or may still come: from nodes that began
    /// later to send by the tables in use.
    fn is_in_use(&self, now: NicTime, half: usize) -> bool {
        let was_filled = |at: NicTime| now.0.saturating_sub(at.0) < QUIET_NS;
        self.replacing.filled[half].is_some_and(was_filled)
            || self.router.heads().any(|(queue, _)| {
                let (_, channel) = self.router.origin(queue);
                usize::from(channel >= self.config.channels / 2) == half
            })
    }

    /// Drops what stands in the channels of a half.
    fn clear(&mut self, now: NicTime, half: usize) {
        for queue in 0..QUEUES_MAX.min((self.wires.len() + 1) * self.config.channels) {
            let (_, channel) = self.router.origin(queue);
            let is_meant = channel >= self.config.channels / 2;
            while usize::from(is_meant) == half && self.router.len(queue) > 0 {
                self.drop_head(now, queue);
                self.counters.old += 1;
            }
        }
    }

    /// Sends by these tables from now on.
    fn commit(&mut self, now: NicTime, id: Id) {
        self.network.switch(id.half());
        self.replacing.plans.commit(id);
        tracing::info!(node = self.config.node.0, "the routes are replaced");
        self.routes_changed(now);
    }

    /// Tells neighbours what they do not know.
    fn talk(&mut self, now: NicTime) {
        let wires = &self.wires;
        let is_up = |wire: usize| wires[wire].is_up();
        let say = self.replacing.plans.say(now, is_up);
        self.replacing.is_busy = self.replacing.plans.is_busy(is_up);
        let most = self.body_max();
        for (wire, say) in say {
            match say {
                // What is longer than a packet is not told: such a network gets no proposals.
                Say::State(body) if body.len() > most => {}
                Say::State(body) => self.wires[wire].tell_plan(now, Kind::State, 0, &body),
                Say::Ask(id, from) => {
                    let body = from.to_be_bytes();
                    self.wires[wire].tell_plan(now, Kind::Ask, id.0, &body);
                }
            }
        }
    }

    /// When to look again.
    pub(super) fn replace_timer(&self, now: NicTime) -> Option<NicTime> {
        let is_busy = self.replacing.is_busy || self.replacing.is_asked();
        is_busy.then_some(NicTime(now.0 + STEP_NS))
    }
}
