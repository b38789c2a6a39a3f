//! What the store holds, and what requests do to it. It has never seen a socket: clients are
//! numbers, and answers are bytes for one of them.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::request::{Request, Text};
use super::{CANCELLED, GO_ON, NOT_READY, READY, write_text};

/// The most bytes that keys and values may have together, those that are waited for among them.
const BYTES_MAX: usize = 512 << 20;

/// What a value counts besides itself and its key, which may be empty; and what one who waits for a
/// key counts besides that.
const ENTRY: usize = 64;

/// The most bytes of an answer, and of a value that grew bit by bit.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A client, as its server counts them.
pub(super) type Client = u64;
/// Bytes for a client.
pub(super) type Answers = Vec<(Client, Vec<u8>)>;

/// The store.
#[derive(Default)]
pub(super) struct Book {
    values: HashMap<Text, Text>,
    queues: HashMap<Text, VecDeque<Text>>,
    /// What each waiting client still waits for.
    missing: HashMap<Client, BTreeSet<Text>>,
    /// Who waits for each key, in the order in which they came.
    waiting: HashMap<Text, Vec<Client>>,
    /// Who stands at each barrier.
    barriers: HashMap<Text, Vec<Client>>,
    bytes: usize,
}

impl Book {
    /// Do what a client wants. Errors: it makes no sense, and the client is to be sent away.
    pub(super) fn serve(
        &mut self,
        client: Client,
        request: Request,
        answers: &mut Answers,
    ) -> Result<(), &'static str> {
        match request {
            Request::Validate => Err("it has introduced itself before"),
            Request::Set(key, value) => self.set(key, value, answers),
            Request::Append(key, value) => self.append(key, value, answers),
            Request::MultiSet(pairs) => {
                for (key, value) in pairs {
                    self.set(key, value, answers)?;
                }
                Ok(())
            }
            Request::QueuePush(key, value) => self.push(key, value, answers),
            Request::Wait(keys) => {
                let missing: BTreeSet<Text> =
                    keys.into_iter().filter(|key| !self.has(key)).collect();
                if missing.is_empty() {
                    answers.push((client, vec![GO_ON]));
                    return Ok(());
                }
                self.let_wait(client, missing)
            }
            Request::Barrier(key, world) => self.stand(client, key, world, answers),
            other => {
                let answer = self.answer(client, other, answers)?;
                answers.push((client, answer));
                Ok(())
            }
        }
    }

    /// Do what has an answer at once.
    fn answer(
        &mut self,
        client: Client,
        request: Request,
        answers: &mut Answers,
    ) -> Result<Vec<u8>, &'static str> {
        Ok(match request {
            Request::CompareSet { key, expected, wanted } => {
                let found = self.values.get(&key);
                let is_expected = found.map_or(expected.is_empty(), |now| *now == expected);
                let now = match found {
                    _ if is_expected => wanted,
                    Some(now) => now.clone(),
                    // There is nothing to be told; this is what PyTorch's own server says.
                    None => expected,
                };
                if is_expected {
                    self.set(key, now.clone(), answers)?;
                }
                text(&now)
            }
            Request::Get(key) => text(self.values.get(&key).map_or(&[][..], |value| value)),
            Request::MultiGet(keys) => {
                let values = keys.iter().map(|key| self.values.get(key).map_or(&[][..], |it| it));
                if values.clone().map(|value| 8 + value.len()).sum::<usize>() > ANSWER_BYTES_MAX {
                    return Err("it asks for too much at once");
                }
                values.flat_map(text).collect()
            }
            Request::Add(key, amount) => self.add(key, amount, answers)?.to_le_bytes().to_vec(),
            Request::Check(keys) => {
                vec![if keys.iter().all(|key| self.has(key)) { READY } else { NOT_READY }]
            }
            Request::CancelWait => {
                self.forget(client);
                vec![CANCELLED]
            }
            Request::Count => (self.values.len() as i64).to_le_bytes().to_vec(),
            Request::Delete(key) => i64::from(self.delete(&key)).to_le_bytes().to_vec(),
            Request::Ping(nonce) => nonce.to_le_bytes().to_vec(),
            Request::QueuePop(key) => self.pop(&key),
            Request::QueueLength(key) => {
                let length = self.queues.get(&key).map_or(0, VecDeque::len);
                (length as i64).to_le_bytes().to_vec()
            }
            Request::List => {
                let bytes: usize = self.values.keys().map(|key| 8 + key.len()).sum();
                if bytes > ANSWER_BYTES_MAX {
                    return Err("there is too much to list at once");
                }
                let count = (self.values.len() as i64).to_le_bytes();
                let keys = self.values.keys().flat_map(text);
                count.into_iter().chain(keys).collect()
            }
            _ => unreachable!("they have no answer, or one that comes later"),
        })
    }

    /// A client has gone, or does not want to wait any more.
    pub(super) fn forget(&mut self, client: Client) {
        for key in self.missing.remove(&client).unwrap_or_default() {
            self.bytes -= ENTRY + key.len();
            if let Some(clients) = self.waiting.get_mut(&key) {
                clients.retain(|other| *other != client);
                if clients.is_empty() {
                    self.waiting.remove(&key);
                }
            }
        }
        self.barriers.retain(|_, clients| {
            clients.retain(|other| *other != client);
            !clients.is_empty()
        });
    }

    fn has(&self, key: &Text) -> bool {
        self.values.contains_key(key) || self.queues.get(key).is_some_and(|it| !it.is_empty())
    }

    fn let_wait(&mut self, client: Client, missing: BTreeSet<Text>) -> Result<(), &'static str> {
        self.may_wait(client)?;
        self.grow(missing.iter().map(|key| ENTRY + key.len()).sum(), 0)?;
        for key in &missing {
            self.waiting.entry(key.clone()).or_default().push(client);
        }
        self.missing.insert(client, missing);
        Ok(())
    }

    /// Whoever waits says nothing more, so that what one client can have us keep has a limit.
    fn may_wait(&self, client: Client) -> Result<(), &'static str> {
        if self.missing.contains_key(&client) {
            return Err("it waits already");
        }
        if self.barriers.values().any(|clients| clients.contains(&client)) {
            return Err("it stands at a barrier already");
        }
        Ok(())
    }

    fn grow(&mut self, more: usize, less: usize) -> Result<(), &'static str> {
        let bytes = self.bytes - less + more;
        if bytes > BYTES_MAX {
            return Err("the store is full");
        }
        self.bytes = bytes;
        Ok(())
    }

    fn set(&mut self, key: Text, value: Text, answers: &mut Answers) -> Result<(), &'static str> {
        let before = self.values.get(&key).map_or(0, |old| ENTRY + key.len() + old.len());
        self.grow(ENTRY + key.len() + value.len(), before)?;
        self.came(&key, usize::MAX, answers);
        self.values.insert(key, value);
        Ok(())
    }

    /// Make a value longer where it lies: it may be long, and grow often.
    fn append(&mut self, key: Text, more: Text, answers: &mut Answers) -> Result<(), &'static str> {
        let Some(value) = self.values.get(&key) else { return self.set(key, more, answers) };
        if value.len() + more.len() > ANSWER_BYTES_MAX {
            return Err("a value grows too long");
        }
        self.grow(more.len(), 0)?;
        self.values.entry(key).or_default().extend(more);
        Ok(())
    }

    fn delete(&mut self, key: &Text) -> bool {
        let Some(value) = self.values.remove(key) else { return false };
        self.bytes -= ENTRY + key.len() + value.len();
        true
    }

    fn add(&mut self, key: Text, amount: i64, answers: &mut Answers) -> Result<i64, &'static str> {
        let now = match self.values.get(&key) {
            None => 0,
            Some(value) => {
                let number = std::str::from_utf8(value).ok().and_then(|it| it.trim().parse().ok());
                number.ok_or("it adds to what is no number")?
            }
        };
        let sum = amount.checked_add(now).ok_or("it adds beyond what a number can be")?;
        self.set(key, sum.to_string().into_bytes(), answers)?;
        Ok(sum)
    }

    fn push(&mut self, key: Text, value: Text, answers: &mut Answers) -> Result<(), &'static str> {
        self.grow(ENTRY + key.len() + value.len(), 0)?;
        // One value is enough for one.
        self.came(&key, 1, answers);
        self.queues.entry(key).or_default().push_back(value);
        Ok(())
    }

    fn pop(&mut self, key: &Text) -> Vec<u8> {
        let Some(queue) = self.queues.get_mut(key) else { return 0_i64.to_le_bytes().to_vec() };
        let mut answer = (queue.len() as i64).to_le_bytes().to_vec();
        if let Some(value) = queue.pop_front() {
            self.bytes -= ENTRY + key.len() + value.len();
            write_text(&mut answer, &value);
        }
        if queue.is_empty() {
            self.queues.remove(key);
        }
        answer
    }

    /// A key is there now: those who waited for it, at most so many, wait for one less.
    fn came(&mut self, key: &Text, most: usize, answers: &mut Answers) {
        let Some(mut clients) = self.waiting.remove(key) else { return };
        let later = clients.split_off(most.min(clients.len()));
        if !later.is_empty() {
            self.waiting.insert(key.clone(), later);
        }
        for client in clients {
            let Some(missing) = self.missing.get_mut(&client) else { continue };
            if missing.remove(key) {
                self.bytes -= ENTRY + key.len();
            }
            if missing.is_empty() {
                self.missing.remove(&client);
                answers.push((client, vec![GO_ON]));
            }
        }
    }

    /// Let all go on when so many stand at a barrier.
    fn stand(
        &mut self,
        client: Client,
        key: Text,
        world: i64,
        answers: &mut Answers,
    ) -> Result<(), &'static str> {
        let world = usize::try_from(world).ok().filter(|world| *world > 0);
        let world = world.ok_or("a barrier for nobody")?;
        self.may_wait(client)?;
        let clients = self.barriers.entry(key.clone()).or_default();
        clients.push(client);
        if clients.len() >= world {
            let all = self.barriers.remove(&key).unwrap_or_default();
            answers.extend(all.into_iter().map(|client| (client, vec![GO_ON])));
        }
        Ok(())
    }
}

fn text(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let mut answer = Vec::new();
    write_text(&mut answer, bytes.as_ref());
    answer
}

#[cfg(test)]
mod tests;
