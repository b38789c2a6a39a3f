//! One writer at a time: who comes second is told who is first, and a dead one holds nobody up.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use brigade_offload::layout::{Directory, Dtype, Tensor};
use brigade_offload::memory::{Arena, Budget, Category};
use brigade_offload::storage::{EngineChoice, Settings, Storage, StorageError};
use brigade_offload::store::{Carrier, StateFile, Store, StoreError, Which};

use crate::place::{Place, directory, filler};

const CHILD: &str = "BRIGADE_STORE_CHILD";
const READY: &str = "ready to be killed";
const BLOCK: u64 = 4096;

/// The child's part: own a state until it is killed; nothing, unless it is started as one.
#[test]
fn the_child_owns_a_state() {
    let Some(path) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    // Without a folder of its own, which nobody would remove after it was killed.
    let arena = Arena::new(Budget::new(8 << 20)).unwrap();
    let carrier = Carrier::new(&Storage::new(&arena, Settings::default()).unwrap(), &arena);
    let mut state = StateFile::open(&carrier, &[path], Which::Newest).unwrap();
    state.save(20, b"", filler(2)).unwrap();
    println!("{READY}");
    // Its parent kills it; should that be gone, so is the pipe, and this ends.
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(state);
}

struct Owner(Child);

impl Owner {
    fn start(path: &std::path::Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "owners::the_child_owns_a_state", "--nocapture"])
            .env(CHILD, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let owner = Self(child);
        assert!(lines.map_while(Result::ok).any(|line| line.contains(READY)), "it has begun");
        owner
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn owned_by(error: StoreError) -> Option<u32> {
    match error {
        StoreError::Storage(StorageError::Owned { owner, .. }) => owner,
        other => panic!("{other}"),
    }
}

#[test]
fn a_second_writer_is_refused_until_the_first_has_died() {
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        let place = Place::new(&format!("owners-{engine:?}"), engine);
        let path = &place.paths("state", 1)[0];
        let mut state = StateFile::create(&place.carrier, &[path], directory(), BLOCK).unwrap();
        state.save(10, b"", filler(1)).unwrap();
        drop(state);
        let mut stale = StateFile::open(&place.carrier, &[path], Which::Newest).unwrap();
        let owner = Owner::start(path);
        // Reading goes on; writing, and making it anew, do not.
        let mut state = StateFile::open(&place.carrier, &[path], Which::Newest).unwrap();
        state.verify().unwrap();
        let refused = state.begin().unwrap_err();
        assert!(refused.to_string().contains("is being written by process"), "{refused}");
        assert_eq!(owned_by(refused), Some(owner.0.id()));
        let refused = StateFile::create(&place.carrier, &[path], directory(), BLOCK).unwrap_err();
        assert_eq!(owned_by(refused), Some(owner.0.id()));
        state.verify().unwrap();
        // Killed, not asked: nothing that it left behind is in the way.
        drop(owner);
        state.save(30, b"", filler(3)).unwrap();
        assert_eq!(state.generation().unwrap().label, 30);
        drop(state);
        // What was opened before all that must not write over it.
        let overtaken = stale.begin().unwrap_err();
        assert!(matches!(overtaken, StoreError::Overtaken { .. }), "{overtaken}");
        let state = StateFile::open(&place.carrier, &[path], Which::Newest).unwrap();
        assert_eq!(state.generation().unwrap().label, 30);
    }
}

/// Generations of the same number need not be the same.
#[test]
fn who_saw_another_generation_of_that_number_is_overtaken_and_keeps_nobody_out() {
    let place = Place::new("owners-numbers", EngineChoice::Auto);
    let paths = place.paths("state", 2);
    let open = |which| StateFile::open(&place.carrier, &paths, which).unwrap();
    let create = || StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
    let mut state = create();
    state.save(1, b"", filler(1)).unwrap();
    state.save(2, b"", filler(2)).unwrap();
    drop(state);
    let mut stale = open(Which::Newest);
    open(Which::Number(1)).save(2, b"", filler(3)).unwrap();
    for _ in 0..2 {
        let overtaken = stale.begin().unwrap_err();
        let same = [&[2, 1][..]; 2];
        let is_so = matches!(&overtaken, StoreError::Overtaken { seen, found, .. }
            if [&seen[..], &found[..]] == same);
        assert!(is_so, "{overtaken}");
    }
    // Beside who was refused.
    open(Which::Newest).save(3, b"", filler(4)).unwrap();
    drop(stale);

    // Nor need states be the same that are in the same files.
    let mut state = create();
    state.save(1, b"", filler(1)).unwrap();
    drop(state);
    let mut stale = open(Which::Newest);
    create().save(1, b"", filler(1)).unwrap();
    let overtaken = stale.begin().unwrap_err();
    assert!(matches!(overtaken, StoreError::Overtaken { .. }), "{overtaken}");
    open(Which::Newest).verify().unwrap();
}

#[test]
fn the_second_writer_of_one_process_is_told_that_it_is_this_one() {
    let place = Place::new("owners-here", EngineChoice::Auto);
    let paths = place.paths("state", 2);
    let mut first = StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
    first.save(1, b"", filler(1)).unwrap();
    let mut second = StateFile::open(&place.carrier, &paths, Which::Newest).unwrap();
    let refused = second.begin().unwrap_err();
    assert!(refused.to_string().contains("is being written by this process"), "{refused}");
    drop(first);
    second.save(2, b"", filler(2)).unwrap();
}

/// Of a store's files one takes all or none.
#[test]
fn a_store_that_is_refused_one_of_its_files_keeps_nobody_from_the_others() {
    let place = Place::new("owners-some", EngineChoice::Auto);
    let paths = place.paths("store", 2);
    let tensors = [Tensor::whole("a", Dtype::U8, &[5]), Tensor::whole("b", Dtype::U8, &[5])];
    let (carrier, category) = (&place.carrier, Category::Parameters);
    let mut store = Store::create(carrier, &paths, tensors, BLOCK, category, 1 << 20).unwrap();
    store.commit(1, b"").unwrap();
    drop(store);
    let mut other = StateFile::open(carrier, &paths[1..], Which::Newest).unwrap();
    let _draft = other.begin().unwrap();
    let mut store = Store::open(carrier, &paths, category, 1 << 20).unwrap();
    let loan = store.get("a").unwrap();
    let refused = store.put_out(loan).map(drop).unwrap_err();
    assert_eq!(owned_by(refused), Some(std::process::id()));
    StateFile::open(carrier, &paths[..1], Which::Newest).unwrap().begin().unwrap();
}

/// Whoever goes back to an older generation may find that somebody has written over it since.
#[test]
fn an_older_generation_that_is_not_whole_any_more_is_not_gone_back_to() {
    let place = Place::new("owners-older", EngineChoice::Auto);
    let paths = place.paths("state", 2);
    let mut state = StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
    state.save(1, b"", filler(1)).unwrap();
    state.save(2, b"", filler(2)).unwrap();
    drop(state);
    let mut older = StateFile::open(&place.carrier, &paths, Which::Number(1)).unwrap();
    let mut writer = StateFile::open(&place.carrier, &paths, Which::Newest).unwrap();
    let mut draft = writer.begin().unwrap();
    let placed = writer.directory().tensors()[0].clone();
    draft.put(&placed, 0, &[0; 100]).unwrap();
    drop((draft, writer));
    older.begin().unwrap_err();
    let newest = StateFile::open(&place.carrier, &paths, Which::Newest).unwrap();
    assert_eq!(newest.generation().unwrap().label, 2);
    newest.verify().unwrap();
}

#[test]
fn what_was_there_is_there_still_when_not_all_of_a_new_state_can_be_had() {
    let place = Place::new("owners-all", EngineChoice::Auto);
    let paths = place.paths("state", 2);
    let mut old = StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
    old.save(1, b"", filler(1)).unwrap();
    drop(old);
    let [fresh, nowhere] = [place.folder.join("new"), place.folder.join("no folder/new")];
    let vast = || Directory::pack([Tensor::whole("vast", Dtype::U8, &[1 << 50])], BLOCK).unwrap();
    let create = |paths: &[&PathBuf], directory, block| {
        StateFile::create(&place.carrier, paths, directory, block).map(drop).unwrap_err()
    };
    let first = &paths[0];
    let refused = [
        create(&[first, &fresh, &nowhere], directory(), BLOCK),
        create(&[first, &fresh, first], directory(), BLOCK),
        create(&[first, &fresh], vast(), 64 << 20),
    ];
    let words = ["No such file", "named twice", "No space left"];
    for (refused, words) in refused.iter().zip(words) {
        assert!(refused.to_string().contains(words), "{refused}");
    }
    assert!(!fresh.exists(), "an empty file is of no use");
    StateFile::open(&place.carrier, &paths, Which::Newest).unwrap().verify().unwrap();

    // The files of a store are states, each of its own.
    let tensors = || [Tensor::whole("a", Dtype::U8, &[5]), Tensor::whole("b", Dtype::U8, &[5])];
    let (carrier, category) = (&place.carrier, Category::Parameters);
    let wrong = [&paths[0], &nowhere];
    let refused = Store::create(carrier, &wrong, tensors(), BLOCK, category, 1 << 20).map(drop);
    assert!(refused.unwrap_err().to_string().contains("No such file"));
    StateFile::open(carrier, &paths, Which::Newest).unwrap().verify().unwrap();
}
