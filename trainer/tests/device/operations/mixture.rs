//! Gates, and rows to experts and back, beside what says the same in a line or two.

use super::{ROWS, Rig, WIDTH};
use crate::has_device;
use brigade_trainer::kernels::cuda::{Routes, View};

/// Experts, and how many of them a row goes to.
const SHAPES: [(usize, usize); 3] = [(5, 1), (8, 2), (3, 3)];

/// What gates made of random scores, on both sides.
struct Gates {
    experts: usize,
    routes: Routes,
    probs: (Vec<f32>, View),
    /// [rows × top]: where the probability of each choice is, and the probability.
    at: Vec<usize>,
    shares: Vec<f32>,
}

/// Choose, and check it.
fn choose(rig: &mut Rig, (experts, top): (usize, usize)) -> Gates {
    let (mut probs, there) = rig.random(ROWS * experts);
    let [chosen, shares, places, choices] = [ROWS * top; 4].map(|len| rig.unwritten(len));
    let routes = Routes { chosen, shares, places, choices, top };
    rig.device.choose_experts(there, routes).unwrap();
    let mut picked: Vec<u32> = Vec::new();
    for p in probs.chunks_mut(experts) {
        let total: f32 = p.iter().map(|score| score.exp()).sum();
        p.iter_mut().for_each(|p| *p = p.exp() / total);
        let mut order: Vec<u32> = (0..experts as u32).collect();
        order.sort_by(|a, b| p[*b as usize].total_cmp(&p[*a as usize]));
        picked.extend_from_slice(&order[..top]);
    }
    let at = picked.iter().enumerate();
    let at: Vec<usize> = at.map(|(it, expert)| it / top * experts + *expert as usize).collect();
    let likely: Vec<f32> = at.iter().map(|at| probs[*at]).collect();
    rig.check("probabilities", there, &probs);
    rig.check("shares", shares, &likely);
    assert_eq!(rig.whole(chosen), picked);
    Gates { experts, routes, probs: (probs, there), at, shares: likely }
}

#[test]
fn gates_agree() {
    if !has_device() {
        return;
    }
    for shape in SHAPES {
        let mut rig = Rig::new();
        let Gates { experts, routes, probs: (probs, there), at, .. } = choose(&mut rig, shape);
        let (dshares, dshares_there) = rig.random(at.len());
        let dscores = rig.unwritten(probs.len());
        rig.device.gate_backward(dscores, there, dshares_there, routes).unwrap();
        let mut want = vec![0.0; probs.len()];
        at.iter().zip(dshares).for_each(|(at, dshare)| want[*at] = dshare);
        for (ds, p) in want.chunks_mut(experts).zip(probs.chunks(experts)) {
            let dot: f32 = ds.iter().zip(p).map(|(ds, p)| ds * p).sum();
            ds.iter_mut().zip(p).for_each(|(ds, p)| *ds = p * (*ds - dot));
        }
        rig.check("scores' gradient", dscores, &want);
    }
}

/// Of rows that have no number no choice leads out of the room.
#[test]
fn what_is_no_number_goes_to_some_expert() {
    if !has_device() {
        return;
    }
    let mut rig = Rig::new();
    let top = 2;
    let [chosen, shares, places, choices] = [ROWS * top; 4].map(|len| rig.unwritten(len));
    let scores = rig.unwritten(ROWS * 3);
    let routes = Routes { chosen, shares, places, choices, top };
    rig.device.choose_experts(scores, routes).unwrap();
    assert!(rig.whole(chosen).iter().all(|expert| *expert < 3));
}

#[test]
fn rows_go_to_experts_and_back() {
    if !has_device() {
        return;
    }
    for shape in SHAPES {
        let mut rig = Rig::new();
        let Gates { routes, shares, .. } = choose(&mut rig, shape);
        let top = routes.top;
        let mut sending: Vec<u32> = (0..(ROWS * top) as u32).collect();
        rig.rng.shuffle(&mut sending);
        let mut place = sending.clone();
        sending.iter().enumerate().for_each(|(at, choice)| place[*choice as usize] = at as u32);
        let [choices, places] =
            [&sending, &place].map(|at| rig.put(bytemuck::cast_slice(at), at.len()));
        let routes = Routes { choices, places, ..routes };
        let (x, x_there) = rig.random(ROWS * WIDTH);
        let (answers, answers_there) = rig.random(ROWS * top * WIDTH);
        let [sent, y, dshares] = [answers.len(), x.len(), ROWS * top].map(|len| rig.unwritten(len));
        let row = |choice: usize| &x[choice / top * WIDTH..][..WIDTH];
        let answer = |choice: usize| &answers[place[choice] as usize * WIDTH..][..WIDTH];
        let all = |of: &dyn Fn(usize) -> Vec<f32>| -> Vec<f32> {
            sending.iter().flat_map(|choice| of(*choice as usize)).collect()
        };

        rig.device.send_rows(sent, x_there, routes).unwrap();
        rig.check("rows sent", sent, &all(&|choice| row(choice).to_vec()));
        rig.device.send_gradients(sent, x_there, routes).unwrap();
        let share = |choice: usize| row(choice).iter().map(|dy| shares[choice] * dy).collect();
        rig.check("gradients sent", sent, &all(&share));
        rig.device.share_gradients(dshares, x_there, answers_there, routes).unwrap();
        let dot = |choice| row(choice).iter().zip(answer(choice)).map(|(a, b)| a * b).sum();
        rig.check("shares' gradient", dshares, &(0..ROWS * top).map(dot).collect::<Vec<f32>>());

        rig.device.combine_answers(y, x_there, answers_there, routes).unwrap();
        rig.device.add_returned(x_there, answers_there, routes).unwrap();
        let (mut sum, mut returned) = (x.clone(), x.clone());
        for (choice, share) in shares.iter().enumerate() {
            for (at, answer) in answer(choice).iter().enumerate() {
                sum[choice / top * WIDTH + at] += share * answer;
                returned[choice / top * WIDTH + at] += answer;
            }
        }
        rig.check("answers by their shares", y, &sum);
        rig.check("rows returned", x_there, &returned);
    }
}
