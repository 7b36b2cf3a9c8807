//! Whatever a driver writes, single buffers give the same results as chains.

use proptest::prelude::*;

use super::*;
use crate::driver::{BUFFERS, Driver, INDIRECT, NEXT, WRITE};

const MEMORY: u64 = 0x40_0000;
const SIZE: u16 = 8;
/// Number of requests popped at once.
const BATCH: usize = 2;

fn any_descriptor() -> impl Strategy<Value = (u64, u32, u16, u16)> {
    let addr = prop_oneof![
        6 => (0u64..0x1000).prop_map(|at| BUFFERS + at * 16),
        1 => Just(MEMORY - 8),
        1 => Just(MEMORY),
        1 => any::<u64>(),
    ];
    let len = prop_oneof![6 => 1u32..4096, 1 => Just(0), 1 => any::<u32>()];
    let flags =
        prop_oneof![4 => Just(0), 4 => Just(WRITE), 1 => Just(NEXT), 1 => Just(INDIRECT | WRITE)];
    (addr, len, flags, 0..SIZE + 2)
}

/// Readable and writable bytes of all requests, heads in order of completion, error, next index.
type Served = (Vec<(usize, usize)>, Vec<u32>, Option<String>, u16);

fn serve(driver: &mut Driver, by_pieces: bool, hold: usize) -> Served {
    let mut queue = Queue::in_order(driver.config, driver.table.clone()).unwrap();
    let (mut asked, mut held, mut refused) = (vec![], VecDeque::new(), None);
    let mut list = Buffers::default();
    loop {
        let mut popped = VecDeque::new();
        let outcome = if by_pieces {
            queue
                .pop_many::<1>((BATCH, 100), &mut popped)
                .map(|count| assert_eq!(count, popped.len()))
        } else {
            (0..BATCH)
                .try_for_each(|_| queue.pop().map(|chain| popped.extend(chain.map(Popped::Chain))))
        };
        let idle = popped.is_empty();
        for popped in popped {
            let (readable, writable) = (popped.readable(), popped.writable());
            asked.push((readable, writable));
            queue.fetch_more::<1>(&popped, 100);
            if let Popped::Piece(single_buffer) = &popped {
                queue.show(single_buffer, 1, &mut list);
                assert_eq!(list.len() + 1, readable + writable, "all of it can be used");
                let got = queue
                    .read_single::<1>(single_buffer, &mut [0; 9])
                    .map(|(_, prefix)| prefix.len());
                assert_eq!(got, (readable > 0).then(|| (readable - 1).min(8)));
                let (put, nothing) = (vec![1; writable.max(1) - 1], Buffers::default());
                let done = queue.write_single(single_buffer, &[1], &put, &nothing);
                assert_eq!(done, (writable > 0).then_some(writable));
            }
            held.push_back(popped);
        }
        if let Err(error) = outcome {
            refused = Some(error.to_string());
            break;
        }
        if idle && held.is_empty() {
            break;
        }
        if idle || held.len() > hold {
            match held.pop_front() {
                Some(Popped::Piece(single_buffer)) => queue.push_single(single_buffer, 7),
                Some(Popped::Chain(chain)) => queue.push(chain, 7),
                None => {}
            }
        }
    }
    assert_eq!(usize::from(queue.in_flight()), held.len());
    held.into_iter().for_each(Popped::abandon);
    let _ = queue.publish();
    let used = std::iter::from_fn(|| driver.used()).map(|(head, written)| {
        assert_eq!(written, 7);
        head
    });
    (asked, used.collect(), refused, queue.next_avail())
}

proptest! {
    #[test]
    fn rings_are_served_alike(
        table in prop::collection::vec(any_descriptor(), usize::from(SIZE)),
        heads in prop::collection::vec(0..SIZE + 1, 0..usize::from(SIZE) + 1),
        hold in 0usize..8,
    ) {
        let by = |pieces| {
            let mut driver = Driver::new(SIZE, MEMORY, true);
            for (index, (addr, len, flags, next)) in table.iter().enumerate() {
                driver.put_desc(index as u16, *addr, *len, *flags, *next);
            }
            heads.iter().for_each(|head| driver.offer(*head));
            driver.publish();
            serve(&mut driver, pieces, hold)
        };
        let (pieces, chains) = (by(true), by(false));
        let offered: Vec<_> = heads.iter().map(|head| u32::from(*head)).collect();
        prop_assert!(offered.starts_with(&chains.1), "{:?} of {offered:?}", chains.1);
        prop_assert_eq!(pieces, chains);
    }
}

#[test]
fn one_descriptor_is_a_piece_and_all_else_is_a_chain() {
    let mut driver = Driver::new(SIZE, MEMORY, false);
    driver.put_chain(0, &[(BUFFERS, 100, false)]);
    driver.put_chain(1, &[(BUFFERS, 100, true)]);
    driver.put_chain(2, &[(BUFFERS, 12, false), (BUFFERS + 64, 60, false)]);
    (0..3).for_each(|head| driver.offer(head));
    driver.publish();
    driver.write(BUFFERS, b"frame");
    let mut queue = Queue::in_order(driver.config, driver.table.clone()).unwrap();
    let mut popped = VecDeque::new();
    assert_eq!(queue.pop_many::<1>((2, 10), &mut popped).unwrap(), 2);
    assert_eq!(queue.pop_many::<1>((10, 10), &mut popped).unwrap(), 1);
    assert_eq!(queue.pop_many::<1>((10, 10), &mut popped).unwrap(), 0);
    let mut next = || popped.pop_front();
    let (Some(Popped::Piece(read)), Some(Popped::Piece(write)), Some(Popped::Chain(chain))) =
        (next(), next(), next())
    else {
        panic!("two pieces and a chain")
    };
    let mut list = Buffers::default();
    let mut first = [0; 5];
    assert_eq!(queue.read_single(&read, &mut first), Some((b"f", &b"rame"[..])));
    queue.show(&read, 5, &mut list);
    assert_eq!(list.len(), 95);
    assert_eq!(queue.write_single(&write, b"ot", b"her", &Buffers::default()), Some(5));
    assert_eq!(driver.read(BUFFERS, 5), b"other");
    assert_eq!(queue.read_single::<1>(&write, &mut first), None, "it is not to be read");
    assert_eq!(queue.write_single(&read, b"x", b"", &list), None, "nor that to be written");
    queue.push_single(read, 0);
    queue.push_single(write, 5);
    queue.push(chain, 0);
    assert_eq!(queue.in_flight(), 0);
    assert!(queue.publish());
    assert_eq!([driver.used(), driver.used()], [Some((0, 0)), Some((1, 5))]);
}
