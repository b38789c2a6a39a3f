//! Several clients of one store, one request after the other.

use super::*;

fn key(text: &str) -> Text {
    text.as_bytes().to_vec()
}

/// What everybody is told.
fn say(book: &mut Book, client: Client, request: Request) -> Answers {
    let mut answers = Vec::new();
    book.serve(client, request, &mut answers).expect("it makes sense");
    answers
}

#[test]
fn waiters_go_on_when_the_last_key_has_come() {
    let mut book = Book::default();
    say(&mut book, 1, Request::Set(key("a"), key("x")));
    assert_eq!(say(&mut book, 2, Request::Wait(vec![key("a"), key("b"), key("c")])), []);
    assert_eq!(say(&mut book, 3, Request::Wait(vec![key("b"), key("b")])), []);
    assert_eq!(say(&mut book, 1, Request::Set(key("b"), key(""))), [(3, vec![GO_ON])]);
    assert_eq!(say(&mut book, 1, Request::Add(key("c"), 5)).first(), Some(&(2, vec![GO_ON])));
    assert_eq!(say(&mut book, 2, Request::Wait(vec![key("a")])), [(2, vec![GO_ON])]);
}

#[test]
fn who_has_gone_is_told_nothing() {
    let mut book = Book::default();
    say(&mut book, 2, Request::Wait(vec![key("a")]));
    say(&mut book, 3, Request::Barrier(key("b"), 2));
    say(&mut book, 4, Request::Wait(vec![key("a")]));
    assert_eq!(say(&mut book, 4, Request::CancelWait), [(4, vec![CANCELLED])]);
    book.forget(2);
    book.forget(3);
    assert_eq!(say(&mut book, 1, Request::Set(key("a"), key("1"))), []);
    assert_eq!(say(&mut book, 1, Request::Barrier(key("b"), 2)), []);
    assert!(book.waiting.is_empty() && book.missing.is_empty());
}

#[test]
fn who_waits_can_ask_for_nothing_else_to_wait_for() {
    let mut book = Book::default();
    say(&mut book, 1, Request::Barrier(key("a"), 2));
    say(&mut book, 2, Request::Wait(vec![key("a")]));
    for client in [1, 2] {
        for more in [Request::Barrier(key("b"), 2), Request::Wait(vec![key("b")])] {
            let refused = book.serve(client, more, &mut Vec::new());
            assert!(refused.is_err(), "client {client}");
        }
    }
    assert_eq!((book.barriers.len(), book.waiting.len()), (1, 1));
    say(&mut book, 1, Request::CancelWait);
    assert_eq!(say(&mut book, 1, Request::Barrier(key("b"), 2)), []);
}

#[test]
fn numbers_are_added_and_others_refused() {
    let mut book = Book::default();
    say(&mut book, 1, Request::Add(key("n"), 2));
    say(&mut book, 1, Request::Add(key("n"), -5));
    assert_eq!(say(&mut book, 1, Request::Get(key("n"))), [(1, text(b"-3"))]);
    say(&mut book, 1, Request::Set(key("t"), key("text")));
    for (name, amount) in [("t", 1), ("n", i64::MIN)] {
        let refused = book.serve(1, Request::Add(key(name), amount), &mut Vec::new());
        assert!(refused.is_err(), "{name}");
    }
}

#[test]
fn a_value_grows_to_what_can_be_told_and_no_further() {
    let mut book = Book::default();
    for bytes in [8 << 20; 8] {
        say(&mut book, 1, Request::Append(key("a"), vec![7; bytes]));
    }
    let refused = book.serve(1, Request::Append(key("a"), key("x")), &mut Vec::new());
    assert!(refused.is_err() && book.values[&key("a")].len() == ANSWER_BYTES_MAX);
}

#[test]
fn what_is_stored_is_counted_to_the_byte() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut book = Book::default();
    for _ in 0..5000 {
        let name = key(["a", "bb", "ccc"][random.usize(..3)]);
        let value = vec![b'1'; random.usize(1..9)];
        let client = random.u64(2..9);
        let waits = book.missing.contains_key(&client);
        let request = match random.u8(..9) {
            0 => Request::Set(name, value),
            1 => Request::Delete(name),
            2 => Request::QueuePush(name, value),
            3 => Request::QueuePop(name),
            4 => Request::CompareSet { key: name, expected: Vec::new(), wanted: value },
            5 if book.values.get(&name).is_none_or(|it| it.len() < 12) => {
                Request::Append(name, value)
            }
            6 if !waits => Request::Wait(vec![name, key(["dd", "a"][random.usize(..2)])]),
            7 => Request::CancelWait,
            _ => Request::MultiSet(vec![(name.clone(), value.clone()), (name, value)]),
        };
        say(&mut book, client, request);
        let values = book.values.iter().map(|(key, it)| ENTRY + key.len() + it.len());
        let values: usize = values.sum();
        let entries = book
            .queues
            .iter()
            .flat_map(|(key, queue)| queue.iter().map(|value| ENTRY + key.len() + value.len()));
        let queued: usize = entries.sum();
        let keys = book.missing.values().flatten();
        let awaited: usize = keys.map(|key| ENTRY + key.len()).sum();
        assert_eq!(book.bytes, values + queued + awaited, "seed {seed}");
    }
}
