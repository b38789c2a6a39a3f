//! Attention, of whole samples, in tiles, and of chunks.

use super::{Rig, WIDTH};
use crate::has_device;
use brigade_trainer::kernels::cuda::Attending;
use brigade_trainer::kernels::{Chunk, Cpu, Heads, Kernels};

#[test]
fn attention_agrees() {
    if !has_device() {
        return;
    }
    // More heads than samples, and fewer: products go the other way.
    for (samples, heads) in [(1, 4), (3, 2)] {
        let mut rig = Rig::new();
        let shape = Heads { time: 19, heads, width: WIDTH };
        let rows = samples * shape.time;
        let (qkv, qkv_there) = rig.random(rows * 3 * WIDTH);
        let (dy, dy_there) = rig.random(rows * WIDTH);
        let squares = rows * heads * shape.time;
        let (mut y, mut probs) = (vec![0.0; rows * WIDTH], vec![0.0; squares]);
        Cpu.attention(&mut y, &mut probs, &qkv, shape);
        let [y_there, probs_there, scores] =
            [y.len(), squares, squares].map(|len| rig.unwritten(len));
        rig.device.attention(y_there, probs_there, qkv_there, shape).unwrap();
        rig.check("attention", y_there, &y);

        let (mut dqkv, mut scratch) = (vec![0.0; qkv.len()], vec![0.0; samples * shape.scratch()]);
        Cpu.attention_backward(&mut dqkv, &mut scratch, &dy, &qkv, &probs, shape);
        let dqkv_there = rig.unwritten(qkv.len());
        let device = &rig.device;
        device
            .attention_backward(dqkv_there, scores, dy_there, qkv_there, probs_there, shape)
            .unwrap();
        rig.check("attention's dqkv", dqkv_there, &dqkv);
    }
}

#[test]
fn attention_in_tiles_agrees() {
    if !has_device() {
        return;
    }
    // Fewer rows than a tile has, just as many, and several tiles of which the last is not full.
    for (samples, heads, time) in [(3, 2, 7), (1, 4, 16), (2, 3, 45)] {
        let mut rig = Rig::new();
        let shape = Heads { time, heads, width: WIDTH };
        let rows = samples * time;
        let (qkv, qkv_there) = rig.random(rows * 3 * WIDTH);
        let (dy, dy_there) = rig.random(rows * WIDTH);
        let (mut y, mut probs) = (vec![0.0; rows * WIDTH], vec![0.0; rows * heads * time]);
        Cpu.attention(&mut y, &mut probs, &qkv, shape);
        let [y_there, lse, delta] =
            [y.len(), rows * heads, rows * heads].map(|len| rig.unwritten(len));
        rig.device.attention_in_tiles(y_there, lse, qkv_there, shape).unwrap();
        rig.check("attention in tiles", y_there, &y);

        let (mut dqkv, mut scratch) = (vec![0.0; qkv.len()], vec![0.0; samples * shape.scratch()]);
        Cpu.attention_backward(&mut dqkv, &mut scratch, &dy, &qkv, &probs, shape);
        let dqkv_there = rig.unwritten(qkv.len());
        let kept = [y_there, qkv_there, lse];
        let device = &rig.device;
        device.attention_in_tiles_backward(dqkv_there, delta, dy_there, kept, shape).unwrap();
        rig.check("the dqkv of attention in tiles", dqkv_there, &dqkv);
    }
}

/// Two chunks that meet each other's keys, and then those of somebody else's chunks.
#[test]
fn attention_in_chunks_agrees() {
    if !has_device() {
        return;
    }
    let chunk = |rows, columns, is_causal| Chunk { rows, columns, len: 9, is_causal };
    let home = [chunk(0, 0, true), chunk(9, 0, false), chunk(9, 9, true)];
    let away = [chunk(9, 0, false), chunk(9, 9, false)];
    for (samples, count) in [(1, 4), (3, 2)] {
        let mut rig = Rig::new();
        let heads = Heads { time: 18, heads: count, width: WIDTH };
        let (rows, squares) = (samples * heads.time, samples * count * 9 * 9);
        let (qkv, qkv_there) = rig.random(rows * 3 * WIDTH);
        let (dy, dy_there) = rig.random(rows * WIDTH);
        let (others, others_there) = rig.random(rows * 2 * WIDTH);
        let own: Vec<f32> =
            qkv.chunks(3 * WIDTH).flat_map(|row| row[WIDTH..].iter().copied()).collect();
        let [own_there, y_there, lse_there, delta, dq, scores, scratch] =
            [own.len(), rows * WIDTH, rows * count, rows * count, rows * WIDTH, squares, squares]
                .map(|len| rig.unwritten(len));
        rig.device.take_columns(own_there, qkv_there, [WIDTH, 2 * WIDTH, 3 * WIDTH]).unwrap();
        rig.check("keys and values", own_there, &own);

        let (mut y, mut lse) = (vec![0.0; rows * WIDTH], vec![f32::NEG_INFINITY; rows * count]);
        let mut room = vec![0.0; samples * 2 * 9 * 9];
        let steps = [(&own, own_there, &home[..]), (&others, others_there, &away[..])];
        for (kv, kv_there, chunks) in steps {
            let (made, from) = ((&mut y[..], &mut lse[..]), (&qkv[..], &kv[..]));
            Cpu.attend(made, &mut room[..samples * 81], from, (chunks, heads));
            for chunk in chunks {
                let of = Attending { qkv: qkv_there, kv: kv_there, chunk, heads };
                let is_first = kv_there == own_there && chunk.columns == 0;
                rig.device.attend([y_there, lse_there], scores, of, is_first).unwrap();
            }
        }
        rig.check("attention in chunks", y_there, &y);
        rig.check("its sums of exponentials", lse_there, &lse);

        rig.device.chunk_deltas(delta, dy_there, y_there, heads).unwrap();
        rig.device.clear(dq).unwrap();
        let mut dqkv = vec![0.0; qkv.len()];
        for (kv, kv_there, chunks) in steps {
            let (mut dkv, dkv_there) = (vec![0.0; kv.len()], rig.unwritten(kv.len()));
            rig.device.clear(dkv_there).unwrap();
            let (made, from) = ((&dy[..], &y[..], &lse[..]), (&qkv[..], &kv[..]));
            Cpu.attend_backward((&mut dqkv, &mut dkv), &mut room, made, from, (chunks, heads));
            for chunk in chunks {
                let of = Attending { qkv: qkv_there, kv: kv_there, chunk, heads };
                let from = [dy_there, lse_there, delta];
                let device = &rig.device;
                device.attend_backward([dq, dkv_there], [scores, scratch], from, of).unwrap();
            }
            rig.check("the dkv of attention in chunks", dkv_there, &dkv);
        }
        let dqkv_there = rig.unwritten(dqkv.len());
        rig.device.clear(dqkv_there).unwrap();
        rig.device.put_columns(dqkv_there, dq, [0, WIDTH, 3 * WIDTH]).unwrap();
        rig.check("the dq of attention in chunks", dqkv_there, &dqkv);
    }
}
