//! A mixture of experts: gradients against differences, the same numbers with any number of ranks,
//! bytes that were predicted from where rows went, and ranks that nobody sends anything.

use brigade_comm::{Communicator, Settings};
use brigade_trainer::kernels::Cpu;
use brigade_trainer::moe::{Mixture, MixtureTape, backward, forward};
use brigade_trainer::parallel::tensor::Group;

const SEED: u64 = 1851;

fn normal(len: usize, scale: f32, rng: &mut fastrand::Rng) -> Vec<f32> {
    let one = |rng: &mut fastrand::Rng| (0..12).map(|_| rng.f32()).sum::<f32>() - 6.0;
    (0..len).map(|_| scale * one(rng)).collect()
}

/// A mixture's whole parameters, some tokens, and the gradient of its output.
struct Case {
    mixture: Mixture,
    params: Vec<Vec<f32>>,
    x: Vec<f32>,
    dy: Vec<f32>,
}

impl Case {
    fn new(experts: usize, top: usize, tokens: usize) -> Case {
        let mixture = Mixture { width: 6, experts, top, ranks: 1, is_apart: false };
        let mut rng = fastrand::Rng::with_seed(SEED);
        let params = mixture.lens().map(|len| normal(len, 0.5, &mut rng)).to_vec();
        let mut rows = || normal(tokens * mixture.width, 1.0, &mut rng);
        Case { x: rows(), dy: rows(), mixture, params }
    }

    /// Every token likes the last expert best.
    fn skewed(mut self) -> Case {
        let c = self.mixture.width;
        self.x.iter_mut().for_each(|x| *x = x.abs() + 0.1);
        for (expert, gate) in self.params[0].chunks_exact_mut(c).enumerate() {
            gate.fill(expert as f32);
        }
        self
    }

    /// A rank's part: rows of the tokens, and experts of four of the five tensors.
    fn part(&self, rank: usize, ranks: usize) -> Case {
        let cut = |all: &Vec<f32>| {
            let edge = |rank: usize| all.len() * rank / ranks;
            all[edge(rank)..edge(rank + 1)].to_vec()
        };
        let mut params: Vec<Vec<f32>> = self.params.iter().map(cut).collect();
        params[0] = self.params[0].clone();
        let mixture = Mixture { ranks, ..self.mixture };
        Case { mixture, params, x: cut(&self.x), dy: cut(&self.dy) }
    }

    fn params(&self) -> [&[f32]; 5] {
        std::array::from_fn(|at| &self.params[at][..])
    }

    fn output(&self, group: Option<&Group>, tape: &mut MixtureTape) -> Vec<f32> {
        let mut y = vec![f32::NAN; self.x.len()];
        let onto = vec![0.5; self.x.len()];
        let how = (&Cpu as _, group, &self.mixture);
        forward(how, &mut y, &self.x, self.params(), tape, &onto).unwrap();
        y
    }

    /// dx, and the gradients of the five tensors.
    fn gradients(&self, group: Option<&Group>, tape: &MixtureTape) -> Vec<Vec<f32>> {
        let mut all: Vec<Vec<f32>> =
            [&self.x].into_iter().chain(&self.params).map(|x| vec![f32::NAN; x.len()]).collect();
        let [dx, grads @ ..] = &mut all[..] else { unreachable!() };
        let mut grads = grads.iter_mut();
        let grads = std::array::from_fn(|_| &mut grads.next().unwrap()[..]);
        let how = (&Cpu as _, group, &self.mixture);
        backward(how, (dx, grads), &self.dy, &self.x, self.params(), tape).unwrap();
        all
    }

    fn loss(&self) -> f64 {
        let y = self.output(None, &mut MixtureTape::default());
        y.iter().zip(&self.dy).map(|(y, dy)| f64::from(*y) * f64::from(*dy)).sum()
    }
}

#[test]
fn gradients_agree_with_differences() {
    for top in [1, 2] {
        let mut case = Case::new(4, top, 9);
        let mut tape = MixtureTape::default();
        case.output(None, &mut tape);
        let gradients = case.gradients(None, &tape);
        for (input, gradient) in gradients.iter().enumerate() {
            let largest = gradient.iter().fold(0.0f64, |most, g| most.max(f64::from(*g).abs()));
            assert!(largest > 0.0, "input {input} has no gradient");
            for (element, got) in gradient.iter().enumerate() {
                // So near that no token changes its experts; two of them cancel the cubic error.
                let mut at = |by: f32| {
                    let place = match input {
                        0 => &mut case.x[element],
                        _ => &mut case.params[input - 1][element],
                    };
                    let kept = *place;
                    *place += by;
                    let loss = case.loss();
                    match input {
                        0 => case.x[element] = kept,
                        _ => case.params[input - 1][element] = kept,
                    }
                    loss
                };
                let step = 4e-3;
                let slope = |by: f32, at: &mut dyn FnMut(f32) -> f64| {
                    (at(by) - at(-by)) / (2.0 * f64::from(by))
                };
                let want = (4.0 * slope(step, &mut at) - slope(2.0 * step, &mut at)) / 3.0;
                let off = (f64::from(*got) - want).abs() / largest;
                assert!(
                    off < 2e-3,
                    "top {top}, input {input}, element {element} is {got}, by differences {want} \
                     (seed {SEED})"
                );
            }
        }
    }
}

/// All ranks together against one process; returns how many rows came to each rank.
fn check(case: &Case, ranks: usize) -> Vec<usize> {
    let mut tape = MixtureTape::default();
    let want = case.output(None, &mut tape);
    let want_gradients = case.gradients(None, &tape);
    let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
    let one = |comm: Communicator| {
        let (group, mut tape) = (Group::new(comm), MixtureTape::default());
        let part = case.part(group.rank(), ranks);
        let y = part.output(Some(&group), &mut tape);
        let gradients = part.gradients(Some(&group), &tape);
        let formula: u64 = tape.formula_bytes(&part.mixture, group.rank()).iter().sum();
        assert_eq!(group.sent_bytes(), formula, "rank {} of {ranks}", group.rank());
        (y, gradients, tape.loads().iter().sum())
    };
    let ends: Vec<(Vec<f32>, Vec<Vec<f32>>, usize)> = std::thread::scope(|scope| {
        let comms = Communicator::local_world(ranks, &settings).unwrap();
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(|| one(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let together = |of: &dyn Fn(usize) -> Vec<f32>| (0..ranks).flat_map(of).collect::<Vec<_>>();
    close(&together(&|rank| ends[rank].0.clone()), &want, "output", ranks);
    for (at, want) in want_gradients.iter().enumerate() {
        let mut got = together(&|rank| ends[rank].1[at].clone());
        if at == 1 {
            // Every rank's tokens give a part of the gate's gradient.
            let parts: Vec<_> = got.chunks_exact(want.len()).map(<[f32]>::to_vec).collect();
            got = (0..want.len()).map(|i| parts.iter().map(|part| part[i]).sum()).collect();
        }
        close(&got, want, &format!("gradient {at}"), ranks);
    }
    ends.iter().map(|end| end.2).collect()
}

fn close(got: &[f32], want: &[f32], what: &str, ranks: usize) {
    assert_eq!(got.len(), want.len(), "{what} on {ranks} ranks");
    let largest = want.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= 1e-5 * largest, "{what} on {ranks} ranks: {got}, not {want}");
    }
}

#[test]
fn any_number_of_ranks_computes_the_same() {
    for (experts, top) in [(4, 1), (4, 2), (8, 2)] {
        for ranks in [1, 2, 4] {
            let loads = check(&Case::new(experts, top, 24), ranks);
            assert_eq!(loads.iter().sum::<usize>(), 24 * top, "no token is dropped");
        }
    }
}

#[test]
fn ranks_without_tokens_take_part() {
    assert_eq!(check(&Case::new(4, 1, 12).skewed(), 4), [0, 0, 0, 12]);
    assert_eq!(check(&Case::new(8, 2, 12).skewed(), 4), [0, 0, 0, 24]);
    // Nor need there be any tokens at all.
    assert_eq!(check(&Case::new(4, 2, 0), 2), [0, 0]);
}
