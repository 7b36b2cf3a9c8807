//! From a frame that came in to those who get it.

use memory::Buffers;
use net::Reason;
use net::flow::FlowKey;
use net::frame::Frame;
use net::header::{Finish, Header};
use net::port::PortId;
use net::switch::Decision;

use super::head::Head;
use super::known::Seat;
use super::work::PIECE_BYTES;
use super::{Given, Hub, known};
use crate::link::{Address, News};
use crate::outlet::Ready;

/// Most segments that a frame is cut into: 64 KiB in those of the smallest size that Linux agrees on
/// (48 bytes).
const PIECES_MAX: usize = 1400;
/// The same for one that goes to everybody: in those of 1 KiB.
const FLOODED_PIECES_MAX: usize = 64;

/// A frame that was decided about.
struct Passing<'a> {
    frame: Frame,
    header: Header,
    vlan: u16,
    hash: Option<u32>,
    /// Nobody knows whose it is.
    flooded: bool,
    prefix: &'a [u8],
    body: &'a Buffers,
}

impl Hub {
    /// Passes a frame on that came in from a port at `now_ns`. Whoever gets something of it is
    /// shown that by [`Hub::flush`]. Tells why it went nowhere, which is counted already.
    pub fn forward(&mut self, from: PortId, given: &Given<'_>, now_ns: u64) -> Option<Reason> {
        let bytes = given.prefix.len() + given.body.len();
        self.work.spend(given.body.iovecs().len() * PIECE_BYTES);
        let refused = self.pass(from, given, bytes, now_ns).err();
        if let Some(known) = known(&mut self.ports, from) {
            known.counts.sends(bytes);
            if let Some(reason) = refused {
                known.counts.refused.count(reason);
            }
        }
        refused
    }

    fn pass(
        &mut self,
        from: PortId,
        given: &Given<'_>,
        bytes: usize,
        now_ns: u64,
    ) -> Result<(), Reason> {
        let Given { header, prefix, body, may } = *given;
        let frame = Frame::parse(prefix, bytes)?;
        let header = Header::parse(&header, &frame, may)?;
        let verdict = self.switch.decide(from, &frame, &header, now_ns);
        let vlan = verdict.vlan;
        if verdict.learnt.is_some_and(|learnt| learnt.is_news()) {
            let term = known(&mut self.ports, from).map_or(0, |known| known.term);
            self.exits.tell(News { port: from, term, vlan, mac: frame.src });
        }
        let hash = self.hash.of(&frame);
        let flooded = matches!(verdict.decision, Decision::Flood(_));
        if let Some(hash) = hash {
            self.name(from, hash, &frame, &verdict.decision, now_ns);
        }
        let passing = Passing { frame, header, vlan, hash, flooded, prefix, body };
        match verdict.decision {
            Decision::Drop(reason) => return Err(reason),
            Decision::Forward(to) => self.hand(to, &passing, now_ns),
            Decision::Flood(ports) => ports.iter().for_each(|to| self.hand(to, &passing, now_ns)),
        }
        Ok(())
    }

    /// Counts a frame that goes on among those of its flow.
    fn name(&mut self, from: PortId, hash: u32, frame: &Frame, decision: &Decision, now_ns: u64) {
        let to = match decision {
            Decision::Drop(_) => return,
            Decision::Forward(to) => Some(*to),
            Decision::Flood(_) => None,
        };
        if let Some(known) = known(&mut self.ports, from) {
            known.flows.see(hash, frame.len.into(), now_ns, || FlowKey::of(frame, to));
        }
    }

    /// Gives a frame to a port, in the form that it takes. What becomes of it there is counted
    /// there, and is no matter of its sender.
    fn hand(&mut self, to: PortId, passing: &Passing<'_>, now_ns: u64) {
        let Passing { frame, header, vlan, hash, flooded, prefix, body } = passing;
        let Some(known) = known(&mut self.ports, to) else { return };
        if *flooded && !known.wants(frame.dst) {
            return;
        }
        let tagging = self.switch.tagging(to, *vlan, frame);
        let changed = Head::new(prefix, header, tagging);
        let (head, header) = match &changed {
            None => (*prefix, header),
            Some((head, header)) => (head.bytes(), header),
        };
        let queue = known.pick(*hash, now_ns, &self.exits);
        let seat = known.seat(queue);
        let address = Address { port: to, queue, epoch: known.epoch };
        let raw = header.for_receiver(known.takes).bytes(1);
        let (exits, work) = (&mut self.exits, &mut self.work);
        let (mut goes, mut units) = (false, 0);
        let mut give = |head: &[u8], body: &Buffers| {
            let ready = Ready { header: raw, head, body, since_ns: now_ns };
            let given = exits.give(seat, address, &ready);
            units += work.spend(ready.bytes());
            goes |= given.is_ok();
            // On another reactor it counts when it gets there.
            if given.is_err() || !matches!(seat, Seat::There(_)) {
                known.got(ready.bytes(), given);
            }
            given
        };
        // What comes of giving is counted already.
        let finished = match header.finish_for(known.takes) {
            Finish::Nothing => {
                let _ = give(head, body);
                Ok(())
            }
            Finish::Checksum => self.workshop.complete(head, body, header).map(|whole| {
                let _ = give(whole, &self.nothing);
            }),
            // The rest of a frame of which a piece is lost goes on: TCP asks for that piece.
            Finish::Segment => {
                let most = if *flooded { FLOODED_PIECES_MAX } else { PIECES_MAX };
                self.workshop.cut(head, body, header, most, |piece| {
                    let _ = give(piece, &self.nothing);
                })
            }
        };
        if let Err(reason) = finished {
            known.got(0, Err(reason));
        }
        known.sent(*hash, queue, (goes, units), now_ns, &self.exits);
    }
}
