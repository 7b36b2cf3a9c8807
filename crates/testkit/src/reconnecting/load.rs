//! Random requests of the guest.

use super::content::{Content, Effect, Range, ZERO, fill};
use super::{Random, Shape};
use crate::raw::request::{Request, kind};

/// Most draws for blocks that do not conflict with requests in flight.
const TRIES: usize = 8;

/// A request and its effect.
#[derive(Debug)]
pub(super) struct PlannedRequest {
    pub(super) request: Request,
    pub(super) range: Range,
    pub(super) effect: Effect,
}

/// Draws the next request. Returns a flush if all draws conflict with requests in flight, or a read
/// if the shape has no flushes.
pub(super) fn draw(random: &mut Random, content: &mut Content, shape: &Shape) -> PlannedRequest {
    for _ in 0..TRIES {
        let range = draw_range(random, content, shape);
        let roll = random.below(100);
        let planned_request = match roll {
            0..45 => read(range),
            45..88 => {
                let stamp = content.stamp();
                let request = Request::write(range.sector(), &fill(range, stamp));
                PlannedRequest { request, range, effect: Effect::Stamp(stamp) }
            }
            88..91 if shape.flushes => break,
            88..91 => read(range),
            _ if shape.plain => read(range),
            91..96 => {
                let request = Request::range(kind::DISCARD, range.sector(), sectors(range), 0);
                PlannedRequest { request, range, effect: Effect::Discard }
            }
            _ => {
                let (at, unmap) = (range.sector(), (roll % 2) as u32);
                let request = Request::range(kind::WRITE_ZEROES, at, sectors(range), unmap);
                PlannedRequest { request, range, effect: Effect::Stamp(ZERO) }
            }
        };
        if content.claim(planned_request.range, planned_request.effect) {
            return planned_request;
        }
    }
    if !shape.flushes {
        return draw_read(random, content, shape);
    }
    let range = Range { first: 0, count: 0 };
    PlannedRequest { request: Request::flush(), range, effect: Effect::Read }
}

/// Draws a read of one block that no request in flight changes.
fn draw_read(random: &mut Random, content: &mut Content, shape: &Shape) -> PlannedRequest {
    loop {
        let range = draw_range(random, content, &Shape { blocks_max: 1, ..*shape });
        if content.claim(range, Effect::Read) {
            return read(range);
        }
    }
}

/// Creates a read of blocks.
pub(super) fn read(range: Range) -> PlannedRequest {
    let request = Request::read(range.sector(), range.bytes());
    PlannedRequest { request, range, effect: Effect::Read }
}

fn sectors(range: Range) -> u32 {
    range.bytes() / 512
}

fn draw_range(random: &mut Random, content: &Content, shape: &Shape) -> Range {
    let count = 1 + random.below(shape.blocks_max.into()) as u32;
    let first = random.below(content.blocks().saturating_sub(count.into()) + 1);
    Range { first, count }
}
