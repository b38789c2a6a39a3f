/*
 * Brigade: collective communication between processes, for C and everything that can call C.
 *
 * C99 and later, C++11 and later. This file is made of the sources in ffi/src; change those.
 *
 *     #include <brigade.h>
 *     #include <stdio.h>
 *
 *     int main(void) {
 *         float ranks = 1;
 *         brigade_comm_t comm;
 *         if (brigade_comm_init_from_env(&comm, NULL) != BRIGADE_SUCCESS
 *             || brigade_all_reduce(&ranks, &ranks, 1, BRIGADE_FLOAT32, BRIGADE_SUM, comm, NULL))
 *             return fprintf(stderr, "%s\n", brigade_last_error()), 1;
 *         printf("%g ranks\n", ranks);
 *         return brigade_comm_destroy(comm);
 *     }
 *
 * Types come first, then functions, part by part; "// ==== Messages" is where one begins:
 *
 *   The version                       brigade_version ..
 *   Errors                            brigade_error_string ..
 *   Unique ids                        brigade_get_unique_id ..
 *   Settings                          brigade_comm_setting ..
 *   Communicators                     brigade_comm_init_rank ..
 *   Communicators made of others      brigade_comm_split ..
 *   Element types and operators       brigade_dtype_size ..
 *   Works: calls in flight            brigade_work_test ..
 *   Collectives                       brigade_all_reduce ..
 *   Messages                          brigade_send ..
 *   Groups of calls                   brigade_group_start ..
 *   Interrupts                        brigade_interrupt_by ..
 *   Memory for buffers                brigade_mem_alloc ..
 *   Windows                           brigade_window_create ..
 *   Devices                           brigade_device_group_create ..
 *   Collectives on devices            brigade_device_all_reduce ..
 *   Offloading: memory with a budget  brigade_arena_create ..
 *   Offloading: tensors in two tiers  brigade_store_create ..
 *   Offloading: AdamW                 brigade_adamw_create ..
 *
 * What holds for every function:
 *
 * - Functions that can fail return BRIGADE_SUCCESS, or what went wrong; brigade_last_error() then
 *   has the whole sentence for this thread. NULL where something is needed, a handle that is none
 *   (or no longer, or from before a fork), and a struct of a wrong size are errors, never crashes.
 * - A pointer must lead to as much memory as its function says, for as long as the call lasts. A
 *   pointer to no elements may be NULL. Counts are elements, and zero is a count. Send and receive
 *   buffers lie apart, or are one where the function says "in place".
 * - Calls on one communicator are carried out in the order in which they are made, and every rank
 *   must make the same ones. Calls from two threads come one after the other.
 * - Where NCCL's functions take a stream last, these take a pointer to a brigade_work_t: with NULL
 *   they return when the call is done, else at once.
 * - Functions named brigade_device_* are the same calls on memory of devices, in the order of a
 *   stream: they take a brigade_device_group_t and a stream where NCCL's take a communicator and a
 *   stream. All others are for memory of the host.
 * - Nothing here installs signal handlers, ends the process, or runs before it is called. Signals
 *   interrupt no call, but brigade_interrupt_by does. A thread that is inside a call must not be
 *   cancelled (pthread_cancel): glibc then ends the process.
 */

#ifndef BRIGADE_H
#define BRIGADE_H

#include <stddef.h>
#include <stdint.h>

// The version that a program was compiled with, as brigade_version() tells that of the library.
#define BRIGADE_VERSION \
    (10000 * BRIGADE_VERSION_MAJOR + 100 * BRIGADE_VERSION_MINOR + BRIGADE_VERSION_PATCH)

// How a brigade_config_t begins: nothing set.
#define BRIGADE_CONFIG_INIT { sizeof(brigade_config_t), 0, 0 }

// How a brigade_stats_t begins.
#define BRIGADE_STATS_INIT { sizeof(brigade_stats_t), 0, 0 }

// How a brigade_device_info_t begins.
#define BRIGADE_DEVICE_INFO_INIT { sizeof(brigade_device_info_t), 0, BRIGADE_WAY_TOGETHER, 0, 0 }

// How a brigade_adamw_config_t begins: what is usual.
#define BRIGADE_ADAMW_INIT { sizeof(brigade_adamw_config_t), 0.9f, 0.999f, 1e-8f, 0.01f, 1 }

// The first number of the version of this header.
#define BRIGADE_VERSION_MAJOR 0

// The second number.
#define BRIGADE_VERSION_MINOR 1

// The third number.
#define BRIGADE_VERSION_PATCH 0

// Bytes of a unique id.
#define BRIGADE_UNIQUE_ID_BYTES 128

// The colour of a rank that takes part in a division, but in no new communicator.
#define BRIGADE_SPLIT_NOCOLOR -1

// The device whose context the calling thread has: after cudaSetDevice and a first allocation, or
// cuCtxSetCurrent.
#define BRIGADE_CURRENT_DEVICE -1

// How a call ended. Results that NCCL knows have NCCL's numbers.
//
// After BRIGADE_INVALID_ARGUMENT and BRIGADE_INVALID_USAGE everything is as it was before the
// call; so it is after BRIGADE_SYSTEM_ERROR where the system had no more threads or files for work
// that goes on, and after BRIGADE_JOIN_FAILED with a communicator that others were to be made of.
// After any other error of a call on a communicator the other ranks get an error too, and every
// later call on it returns the first error again. It can still be asked about, as by
// brigade_comm_get_rank_error, and those who are left go on with what brigade_comm_shrink makes of
// it; it must still be destroyed.
typedef enum {
    // It did what it says.
    BRIGADE_SUCCESS = 0,
    // The operating system or a device failed.
    BRIGADE_SYSTEM_ERROR = 2,
    // A mistake in the library itself.
    BRIGADE_INTERNAL_ERROR = 3,
    // An argument makes no sense by itself.
    BRIGADE_INVALID_ARGUMENT = 4,
    // The call makes no sense here and now.
    BRIGADE_INVALID_USAGE = 5,
    // The process of a rank ended, or cannot be reached any more; or the one ended that brought
    // the ranks together.
    BRIGADE_PEER_LOST = 6,
    // Not an error: the call goes on.
    BRIGADE_IN_PROGRESS = 7,
    // Nothing moved until the deadline (BRIGADE_TIMEOUT_MS).
    BRIGADE_TIMEOUT = 8,
    // A rank destroyed its communicator while another one needs it.
    BRIGADE_PEER_LEFT = 9,
    // Ranks are in different calls.
    BRIGADE_MISMATCH = 10,
    // A rank called brigade_comm_abort, or ended the world because of what it met in a call: its
    // deadline, a rank that left, a failure of the system, a panic. The error has its sentence.
    BRIGADE_ABORTED = 11,
    // The ranks could not come together.
    BRIGADE_JOIN_FAILED = 12,
    // Bytes in a file are not what was written there.
    BRIGADE_CORRUPT = 13,
    // A budget of memory does not hold what was asked for.
    BRIGADE_OVER_BUDGET = 14,
} brigade_result_t;

// The type of one element. Types that NCCL knows have NCCL's numbers.
typedef enum {
    // Signed 8-bit integer.
    BRIGADE_INT8 = 0,
    // Unsigned 8-bit integer.
    BRIGADE_UINT8 = 1,
    // Signed 32-bit integer.
    BRIGADE_INT32 = 2,
    // Unsigned 32-bit integer.
    BRIGADE_UINT32 = 3,
    // Signed 64-bit integer.
    BRIGADE_INT64 = 4,
    // Unsigned 64-bit integer.
    BRIGADE_UINT64 = 5,
    // IEEE 754 binary16; folded in 32 bits, rounded once per fold.
    BRIGADE_FLOAT16 = 6,
    // IEEE 754 binary32.
    BRIGADE_FLOAT32 = 7,
    // IEEE 754 binary64.
    BRIGADE_FLOAT64 = 8,
    // The upper half of a binary32; folded in 32 bits, rounded once per fold.
    BRIGADE_BFLOAT16 = 9,
    // OCP FP8, 4 exponent and 3 mantissa bits.
    BRIGADE_FLOAT8E4M3 = 10,
    // OCP FP8, 5 exponent and 2 mantissa bits.
    BRIGADE_FLOAT8E5M2 = 11,
    // Signed 16-bit integer.
    BRIGADE_INT16 = 12,
    // One byte: zero is false, anything else is true; results are 0 or 1, but what calls on
    // devices only move stays as it is.
    BRIGADE_BOOL = 13,
} brigade_dtype_t;

// How a borrowed tensor comes back.
typedef enum {
    // As it was.
    BRIGADE_UNCHANGED = 0,
    // With new contents, which go to the files when room is needed or with the next commit.
    BRIGADE_CHANGED = 1,
    // With new contents, which start to go to the files now and leave memory once they are there.
    BRIGADE_OUT = 2,
} brigade_returned_t;

// How the calls of a group on devices are carried out.
typedef enum {
    // As one kernel, where ranks are threads of one process: functions wait for nobody, except at
    // the first call of a kind, and calls can be captured in graphs after that one.
    BRIGADE_WAY_TOGETHER = 0,
    // By kernels between two meetings of the processes of one machine: a call is done when its
    // function returns, and cannot be captured.
    BRIGADE_WAY_MET = 1,
    // Through pinned memory of the host, anywhere: likewise.
    BRIGADE_WAY_STAGED = 2,
    // As one kernel that carries out a schedule, where no device is shared by processes of one
    // machine, or an algorithm was named: otherwise as BRIGADE_WAY_TOGETHER.
    BRIGADE_WAY_LINKED = 3,
    // By the devices of each node, which reach each other, and what goes from node to node through
    // pinned memory of the hosts; short calls as BRIGADE_WAY_STAGED. A call is done when its
    // function returns, and cannot be captured.
    BRIGADE_WAY_BY_NODES = 4,
} brigade_way_t;

// An optimizer over state in files. What is inside is nobody's.
typedef struct brigade_adamw brigade_adamw;

// Memory with a hard budget. What is inside is nobody's.
typedef struct brigade_arena brigade_arena;

// A group of ranks that make the same calls in the same order. What is inside is nobody's.
typedef struct brigade_comm brigade_comm;

// The ranks of a communicator on devices. What is inside is nobody's.
typedef struct brigade_device_group brigade_device_group;

// Tensors in two tiers. What is inside is nobody's.
typedef struct brigade_store brigade_store;

// A window of every rank of a group. What is inside is nobody's.
typedef struct brigade_window brigade_window;

// Calls in flight. What is inside is nobody's.
typedef struct brigade_work brigade_work;

// Where ranks meet, and the secret that lets them in: hand it on as one hands on a password.
typedef struct {
    // To be copied as they are.
    uint8_t bytes[BRIGADE_UNIQUE_ID_BYTES];
} brigade_unique_id_t;

// A communicator. The value is a handle, never an address: one that was destroyed, or made by
// the process that forked this one, is refused.
typedef brigade_comm *brigade_comm_t;

// One setting: the name of its environment variable, and its value as text.
// `brigade doctor --settings` lists them all.
typedef struct {
    // BRIGADE_TIMEOUT_MS, say.
    const char *name;
    // What would stand in the environment; empty for what does stand there.
    const char *value;
} brigade_setting_t;

// How a communicator shall be. Begin with BRIGADE_CONFIG_INIT; members are only ever added at the
// end, and a library knows by struct_size which of them its caller knew.
typedef struct {
    // sizeof(brigade_config_t).
    size_t struct_size;
    // Settings that count instead of the environment's; may be NULL if there are none.
    const brigade_setting_t *settings;
    // How many.
    size_t setting_count;
} brigade_config_t;

// Counters of one communicator on one rank. Begin with BRIGADE_STATS_INIT; members are only ever
// added at the end.
typedef struct {
    // sizeof(brigade_stats_t).
    size_t struct_size;
    // Payload bytes sent to other ranks, without headers and framing.
    uint64_t sent_bytes;
    // Calls carried out.
    uint64_t calls;
} brigade_stats_t;

// How two elements become one: one of the constants below, or a handle of brigade_op_create or
// brigade_op_create_pre_mul_sum. Operators that NCCL knows have NCCL's numbers.
typedef uint64_t brigade_op_t;

// An operator of the user's: accumulator[i] = accumulator[i] (op) arriving[i] for `count`
// elements, both aligned to their type. It must be associative, give the same bytes for the same
// bytes, and also be commutative unless BRIGADE_ORDERED is set. It runs on a thread that is inside
// a call, maybe on several at once: it must not call functions of this library that wait, and must
// neither throw nor jump out.
typedef void (*brigade_fold_t)(const void *arriving,
                               void *accumulator,
                               size_t count,
                               brigade_dtype_t dtype,
                               void *user);

// A handle of calls in flight. Functions that carry out calls take a pointer to one last, where
// NCCL's take a stream: with NULL they return when the call is done; else they return at once,
// and the memory of the call belongs to it until brigade_work_test or brigade_work_wait tells its
// end. Of all kinds of handles 65536 can be alive in a process.
typedef brigade_work *brigade_work_t;

// A function that is called when work has ended: `result` as brigade_work_wait would tell it, and
// the whole sentence, empty after BRIGADE_SUCCESS and good until the function returns. It must
// neither throw nor jump out.
typedef void (*brigade_done_t)(brigade_result_t result,
                               const char *sentence,
                               void *user);

// A function that tells whether a call that waits shall end, by any number but 0. It runs inside
// the call: it may make none itself but brigade_last_error, and must neither throw nor jump out.
typedef int (*brigade_interrupt_t)(void *user);

// A handle of windows: memory of every rank of a group, with counters beside it, that all of them
// write and read while its owner does something else.
typedef brigade_window *brigade_window_t;

// A handle of a communicator's ranks on devices, for calls on memory that lies there. Their
// functions are named brigade_device_*, and take a group and a stream where NCCL's take a
// communicator and a stream: a call is enqueued in the stream and the function returns. What comes
// behind it in the stream sees its result; until then the memory is the call's.
//
// The stream is a CUstream or cudaStream_t of the rank's device, and one rank's alone; NULL is the
// default stream. Ranks that are threads and share a device share its default stream too, where
// none could wait for another: a call in it waits for what the stream has, and is done when it
// returns. Calls of one group come in the order in which they were made, in whichever streams.
//
// Buffers lie on the rank's device, or in pinned memory of the host. Ordinary memory of the host
// is BRIGADE_INVALID_ARGUMENT, as memory of devices is to all other functions. Calls in a group
// (brigade_group_start) are enqueued at its end, before its calls on memory of the host; a thread
// that has several ranks makes their calls so. brigade_comm_abort of the communicator ends all.
typedef brigade_device_group *brigade_device_group_t;

// What a group on devices is. Begin with BRIGADE_DEVICE_INFO_INIT; members are only ever added at
// the end.
typedef struct {
    // sizeof(brigade_device_info_t).
    size_t struct_size;
    // The number of this rank's device, as CUDA counts them.
    int device;
    // How calls are carried out; the same on all ranks.
    brigade_way_t way;
    // 1 if calls can be captured in graphs, else 0.
    int captures;
    // 1 if another rank of this process is on the same device, else 0.
    int shares_device;
} brigade_device_info_t;

// A handle of memory with a hard budget, and of what moves it to files and back: all that
// offloading takes comes from here. Stores and optimizers keep what they use of it, so its handle
// may end before theirs.
typedef brigade_arena *brigade_arena_t;

// A handle of tensors by name: in memory up to a limit, and in files for the rest. They come back
// into memory ahead of their use, and leave it when room is needed.
typedef brigade_store *brigade_store_t;

// A tensor of a store.
typedef struct {
    // By which it is asked for.
    const char *name;
    // The type of its elements.
    brigade_dtype_t dtype;
    // How many.
    size_t count;
} brigade_tensor_t;

// A handle of AdamW over state in files: weights and both moments as float32, 12 bytes an element,
// of which only some chunks are ever in memory.
typedef brigade_adamw *brigade_adamw_t;

// How a brigade_adamw_t shall be. Begin with BRIGADE_ADAMW_INIT; members are only ever added at
// the end.
typedef struct {
    // sizeof(brigade_adamw_config_t).
    size_t struct_size;
    // Memory of the mean gradient.
    float beta1;
    // Memory of the mean squared gradient.
    float beta2;
    // Keeps the division finite.
    float eps;
    // Weight decay, apart from the gradients.
    float decay;
    // Threads that update.
    int threads;
} brigade_adamw_config_t;

// The sum. Integers wrap around; of booleans it is "or".
#define BRIGADE_SUM 0

// The product; of booleans "and".
#define BRIGADE_PROD 1

// The greatest; NaN if one is NaN.
#define BRIGADE_MAX 2

// The least; NaN if one is NaN.
#define BRIGADE_MIN 3

// The sum divided by the number of ranks, truncated for integers. A sum that the type does not
// hold is infinite before it is divided, or the largest number of eight bits: where that may be,
// brigade_op_create_pre_mul_sum divides first.
#define BRIGADE_AVG 4

// Bitwise and, of integers and booleans.
#define BRIGADE_BAND 5

// Bitwise or, of integers and booleans.
#define BRIGADE_BOR 6

// Bitwise exclusive or, of integers and booleans.
#define BRIGADE_BXOR 7

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// ==== The version

// The version of the library that was loaded: 10000 * major + 100 * minor + patch.
//
// Threads: from any thread, at any time.
int brigade_version(void);

// ==== Errors

// A few words for a result; never NULL, and good for ever.
//
// Threads: from any thread, at any time.
const char *brigade_error_string(brigade_result_t result);

// The whole sentence of the last call that failed on this thread: what, where, which rank, the
// number that was wrong. Ranks have their numbers in the world, also where a call is one of a part
// of it. Never NULL; empty if none has failed, or on a thread that is ending. It is good until the
// next call fails on this thread, or the thread ends.
//
// Threads: each thread has its own.
const char *brigade_last_error(void);

// ==== Unique ids

// Draw an id for one world. One process calls this, and brings the id to all ranks by any way it
// has. A thread of this process then waits for the ranks, so the process stays until they have
// come; it need not be a rank itself.
//
// Threads: from any thread, at any time.
brigade_result_t brigade_get_unique_id(brigade_unique_id_t *unique_id);

// ==== Settings

// Write the value that a setting has in a communicator, as text with a zero at its end, to
// `value`, which has room for `bytes` bytes. If that is too little the error tells how many it
// takes.
//
// Threads: from any thread.
brigade_result_t brigade_comm_setting(brigade_comm_t comm,
                                      const char *name,
                                      char *value,
                                      size_t bytes);

// The name of a setting, by its number from 0; NULL behind the last one.
//
// Threads: from any thread, at any time.
const char *brigade_setting_name(int number);

// ==== Communicators

// Join the world of those who have the same unique id, as rank `rank` of `nranks`, with the
// settings of the environment. Returns when all have come, or BRIGADE_JOIN_TIMEOUT_MS has passed;
// who is late is told on standard error after a sixth of BRIGADE_REPORT_MS. `comm` is NULL after
// an error.
//
// Threads: from any thread. Several ranks of one process need as many threads, or
// brigade_comm_init_all.
brigade_result_t brigade_comm_init_rank(brigade_comm_t *comm,
                                        int nranks,
                                        brigade_unique_id_t unique_id,
                                        int rank);

// Like brigade_comm_init_rank, with settings that count instead of the environment's. `config` may
// be NULL.
//
// Threads: from any thread.
brigade_result_t brigade_comm_init_rank_config(brigade_comm_t *comm,
                                               int nranks,
                                               brigade_unique_id_t unique_id,
                                               int rank,
                                               const brigade_config_t *config);

// Join the world that the environment describes: that of `brigade run`, torchrun, mpirun, srun, a
// Kubernetes indexed job, or BRIGADE_RANK and its sisters; without any of them a world of one
// rank. `config` may be NULL. `comm` is NULL after an error.
//
// Threads: from any thread.
brigade_result_t brigade_comm_init_from_env(brigade_comm_t *comm,
                                            const brigade_config_t *config);

// `nranks` communicators of one world within this process, `comms[r]` being rank r's. Blocking
// calls on them need a thread for each, or a group that holds the calls of all. Joining takes a
// thread for each, too: BRIGADE_SYSTEM_ERROR where there are not so many, or not so many files.
//
// Threads: from any thread.
brigade_result_t brigade_comm_init_all(brigade_comm_t *comms,
                                       int nranks,
                                       const brigade_config_t *config);

// Wait until all ranks have come here and all their calls have ended, and leave the group. After
// that no rank needs another one any more, the process may end, and the handle is good for
// brigade_comm_destroy only. What was made of the communicator and is still used (parts of it,
// windows, groups on devices) keeps it; whoever ends without having ended these is lost to others.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_comm_finalize(brigade_comm_t comm);

// End the world of this communicator on all its ranks: calls in flight, here and there, end with
// BRIGADE_ABORTED and this reason, which may be NULL. The communicator must still be destroyed.
// Returns at once, or within a second if the network is stuck; it waits for no call.
//
// Threads: from any thread, also while another one is inside a call.
brigade_result_t brigade_comm_abort(brigade_comm_t comm,
                                    const char *reason);

// Whether the world of this communicator goes on: `result` is BRIGADE_SUCCESS, or what ended it (a
// lost rank, an abort, a mismatch), as soon as that is known. For those who watch while another
// thread is inside a call.
//
// Threads: from any thread, also while another one is inside a call.
brigade_result_t brigade_comm_get_async_error(brigade_comm_t comm,
                                              brigade_result_t *result);

// Whether rank `rank` of this communicator has gone, as far as is known: `result` is
// BRIGADE_PEER_LOST for one whose process has ended, BRIGADE_PEER_LEFT for one that has left, else
// BRIGADE_SUCCESS. Once the process is lost that brought the ranks together, further losses are
// not known. For those who wait for that rank elsewhere.
//
// Threads: from any thread, also while another one is inside a call.
brigade_result_t brigade_comm_get_rank_error(brigade_comm_t comm,
                                             int rank,
                                             brigade_result_t *result);

// Leave the group, after the calls that were started on it have ended. The handle ends at once; if
// another thread is inside a call, the rest ends with that call.
//
// Threads: from any thread.
brigade_result_t brigade_comm_destroy(brigade_comm_t comm);

// This rank's number in the group.
//
// Threads: from any thread.
brigade_result_t brigade_comm_rank(brigade_comm_t comm,
                                   int *rank);

// How many ranks the group has.
//
// Threads: from any thread.
brigade_result_t brigade_comm_size(brigade_comm_t comm,
                                   int *size);

// Read the counters of a communicator.
//
// Threads: from any thread.
brigade_result_t brigade_comm_stats(brigade_comm_t comm,
                                    brigade_stats_t *stats);

// Describe a communicator for people, as text with a zero at its end: this rank's place, which
// transport goes to whom, and by which algorithm each collective goes, by size. `text` has room
// for `bytes` bytes, of which 2048 are enough for most; else the error tells how many it takes.
//
// Threads: from any thread. It waits for no call, so what runs inside one may call it, too.
brigade_result_t brigade_comm_describe(brigade_comm_t comm,
                                       char *text,
                                       size_t bytes);

// ==== Communicators made of others

// Divide a group: ranks that give the same colour, 0 or more, become a new communicator, in the
// order of `key` and then of rank. With BRIGADE_SPLIT_NOCOLOR a rank gets NULL. Every rank must
// call it.
//
// The new communicators share their fate with each other and with the old one: an error that ends
// one of them, a lost rank or brigade_comm_abort ends all, and each of their later calls returns
// it. One in a world of its own is made by brigade_comm_shrink.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_comm_split(brigade_comm_t comm,
                                    int color,
                                    int key,
                                    brigade_comm_t *new_comm);

// Like brigade_comm_split, with settings for the new communicator that count instead of the old
// one's. `config` may be NULL. Those about transports mean nothing here: they were opened when the
// world came together.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_comm_split_config(brigade_comm_t comm,
                                           int color,
                                           int key,
                                           brigade_comm_t *new_comm,
                                           const brigade_config_t *config);

// A communicator of this group's ranks but the `count` ones in `excluded`, in a world of their
// own: what has become of the excluded ranks, or will, does not concern it. All others call this
// with the same list, whatever has happened to `comm`, which stays as it is; the excluded ones do
// not. A list that leaves out a rank that is known to be gone is BRIGADE_INVALID_ARGUMENT.
// `config` may be NULL, and counts as for brigade_comm_split_config.
//
// Threads: from any thread.
brigade_result_t brigade_comm_shrink(brigade_comm_t comm,
                                     const int *excluded,
                                     size_t count,
                                     brigade_comm_t *new_comm,
                                     const brigade_config_t *config);

// A communicator of this group's ranks, which keep their numbers, and of newcomers behind them:
// `nranks` in all, in a world of their own. Every rank of `comm` calls it, one or more of them
// with the unique id of that world, which is not the old one's, the others with NULL; the
// newcomers call brigade_comm_init_rank with this id and their own number. `comm` stays as it is.
// `config` may be NULL; all of it counts. After a loss, brigade_comm_shrink first: then a process
// may come in the place of one that was lost.
//
// Threads: from any thread.
brigade_result_t brigade_comm_grow(brigade_comm_t comm,
                                   int nranks,
                                   const brigade_unique_id_t *unique_id,
                                   brigade_comm_t *new_comm,
                                   const brigade_config_t *config);

// ==== Element types and operators

// Bytes of one element; 0 for what is no element type.
//
// Threads: from any thread, at any time.
size_t brigade_dtype_size(brigade_dtype_t dtype);

// Make an operator of a function. `user` is handed to it as it is. Ranks whose operators have
// different names nearly always notice.
//
// Threads: from any thread.
brigade_result_t brigade_op_create(brigade_op_t *op,
                                   const char *name,
                                   brigade_fold_t fold,
                                   void *user);

// Make the operator that multiplies each rank's input by `factor` and then sums. Ranks may give
// different factors. The factor is converted to float for types up to 32 bits, and truncated for
// integers.
//
// Threads: from any thread.
brigade_result_t brigade_op_create_pre_mul_sum(brigade_op_t *op,
                                               double factor);

// End an operator that was made. Calls that were begun with it may still use its function.
//
// Threads: from any thread.
brigade_result_t brigade_op_destroy(brigade_op_t op);

// ==== Works: calls in flight

// How the work ended; BRIGADE_IN_PROGRESS if it has not.
//
// Threads: from any thread.
brigade_result_t brigade_work_test(brigade_work_t work);

// Wait for the end of the work, at most `timeout_ms`, or as long as it takes if that is negative.
// Returns how it ended, or BRIGADE_IN_PROGRESS if it has not: then it goes on. A call ends at its
// own deadline (BRIGADE_TIMEOUT_MS) at the latest.
//
// Threads: from any thread, also from several at once.
brigade_result_t brigade_work_wait(brigade_work_t work,
                                   int64_t timeout_ms);

// Call `done` once when the work has ended, well or not, which may be now. It runs on a thread
// that the communicator keeps for such functions: never on the caller's, never on one that carries
// calls out, and never behind another such function. So it may call collectives, also of the same
// communicator, wait for works, and destroy the communicator. The handle of the work may be freed
// before. brigade_comm_destroy waits for such functions (BRIGADE_TIMEOUT_MS at most), except in
// one: a caller that holds a lock that they need lets go of it first. The handle of the
// communicator ends before that, so whoever's function still calls something on it waits for that
// before destroying.
//
// Threads: from any thread.
brigade_result_t brigade_work_on_done(brigade_work_t work,
                                      brigade_done_t done,
                                      void *user);

// A file descriptor to poll (POLLIN, EPOLLIN): readable once the work has ended, well or not,
// until somebody reads from it; what is read means nothing. The same one each time. It belongs to
// the handle: brigade_work_free closes it.
//
// Threads: from any thread.
brigade_result_t brigade_work_fd(brigade_work_t work,
                                 int *fd);

// End a handle. Work that has not ended goes on, and still needs its memory.
//
// Threads: from any thread.
brigade_result_t brigade_work_free(brigade_work_t work);

// ==== Collectives

// recvbuf of every rank = the fold of the sendbufs of all ranks, `count` elements each; with the
// same bits everywhere. In place: sendbuf == recvbuf.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_all_reduce(const void *sendbuf,
                                    void *recvbuf,
                                    size_t count,
                                    brigade_dtype_t dtype,
                                    brigade_op_t op,
                                    brigade_comm_t comm,
                                    brigade_work_t *work);

// recvbuf of rank r = block r of the fold of the sendbufs of all ranks. sendbuf: nranks *
// recvcount elements, recvbuf: recvcount. In place: recvbuf == sendbuf + rank * recvcount.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_reduce_scatter(const void *sendbuf,
                                        void *recvbuf,
                                        size_t recvcount,
                                        brigade_dtype_t dtype,
                                        brigade_op_t op,
                                        brigade_comm_t comm,
                                        brigade_work_t *work);

// Like brigade_reduce_scatter with recvcounts[r] elements for rank r, the same list on all ranks.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_reduce_scatter_v(const void *sendbuf,
                                          void *recvbuf,
                                          const size_t *recvcounts,
                                          brigade_dtype_t dtype,
                                          brigade_op_t op,
                                          brigade_comm_t comm,
                                          brigade_work_t *work);

// recvbuf of every rank = the sendbufs of all ranks, in their order. sendbuf: sendcount elements,
// recvbuf: nranks * sendcount. In place: sendbuf == recvbuf + rank * sendcount.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_all_gather(const void *sendbuf,
                                    void *recvbuf,
                                    size_t sendcount,
                                    brigade_dtype_t dtype,
                                    brigade_comm_t comm,
                                    brigade_work_t *work);

// Like brigade_all_gather with sendcounts[r] elements from rank r, the same list on all ranks.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_all_gather_v(const void *sendbuf,
                                      void *recvbuf,
                                      const size_t *sendcounts,
                                      brigade_dtype_t dtype,
                                      brigade_comm_t comm,
                                      brigade_work_t *work);

// Block s of recvbuf of rank t = block t of sendbuf of rank s. Both hold nranks * count elements.
// In place: sendbuf == recvbuf.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_all_to_all(const void *sendbuf,
                                    void *recvbuf,
                                    size_t count,
                                    brigade_dtype_t dtype,
                                    brigade_comm_t comm,
                                    brigade_work_t *work);

// Like brigade_all_to_all with sendcounts[r] elements to rank r and recvcounts[r] from it, one
// block behind the other; for itself a rank has one number in both. In place: sendbuf == recvbuf,
// with as many elements out as in.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_all_to_all_v(const void *sendbuf,
                                      const size_t *sendcounts,
                                      void *recvbuf,
                                      const size_t *recvcounts,
                                      brigade_dtype_t dtype,
                                      brigade_comm_t comm,
                                      brigade_work_t *work);

// Wait until every rank has come here.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_barrier(brigade_comm_t comm,
                                 brigade_work_t *work);

// recvbuf of every rank = sendbuf of rank `root`, `count` elements. sendbuf counts only there. In
// place: sendbuf == recvbuf.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_broadcast(const void *sendbuf,
                                   void *recvbuf,
                                   size_t count,
                                   brigade_dtype_t dtype,
                                   int root,
                                   brigade_comm_t comm,
                                   brigade_work_t *work);

// recvbuf of rank `root` = the fold of the sendbufs of all ranks, `count` elements each. recvbuf
// counts only there. In place: sendbuf == recvbuf.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_reduce(const void *sendbuf,
                                void *recvbuf,
                                size_t count,
                                brigade_dtype_t dtype,
                                brigade_op_t op,
                                int root,
                                brigade_comm_t comm,
                                brigade_work_t *work);

// recvbuf of rank `root` = the sendbufs of all ranks, in their order. sendbuf: sendcount elements,
// recvbuf: nranks * sendcount, which counts only there. In place: sendbuf == recvbuf + rank *
// sendcount.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_gather(const void *sendbuf,
                                void *recvbuf,
                                size_t sendcount,
                                brigade_dtype_t dtype,
                                int root,
                                brigade_comm_t comm,
                                brigade_work_t *work);

// Like brigade_gather with sendcounts[r] elements from rank r. Rank `root` needs the whole list
// right; elsewhere only the rank's own count matters.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_gather_v(const void *sendbuf,
                                  void *recvbuf,
                                  const size_t *sendcounts,
                                  brigade_dtype_t dtype,
                                  int root,
                                  brigade_comm_t comm,
                                  brigade_work_t *work);

// recvbuf of rank r = block r of sendbuf of rank `root`. recvbuf: recvcount elements, sendbuf:
// nranks * recvcount, which counts only there. In place: recvbuf == sendbuf + rank * recvcount.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_scatter(const void *sendbuf,
                                 void *recvbuf,
                                 size_t recvcount,
                                 brigade_dtype_t dtype,
                                 int root,
                                 brigade_comm_t comm,
                                 brigade_work_t *work);

// Like brigade_scatter with recvcounts[r] elements for rank r. Rank `root` needs the whole list
// right; elsewhere only the rank's own count matters.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_scatter_v(const void *sendbuf,
                                   void *recvbuf,
                                   const size_t *recvcounts,
                                   brigade_dtype_t dtype,
                                   int root,
                                   brigade_comm_t comm,
                                   brigade_work_t *work);

// ==== Messages

// Send `count` elements to rank `peer`, which must receive as many of the same type. Returns when
// sendbuf may be used again, which may be before they have arrived. Messages between two ranks
// keep their order. Calls on one communicator begin in the order in which they were made, with a
// work, too: ranks that both send to each other first, or both receive first, and do the other
// afterwards wait for each other until BRIGADE_TIMEOUT_MS. Put both into a group.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_send(const void *sendbuf,
                              size_t count,
                              brigade_dtype_t dtype,
                              int peer,
                              brigade_comm_t comm,
                              brigade_work_t *work);

// Receive `count` elements from rank `peer`; in a group with what goes there at the same time, as
// brigade_send says.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_recv(void *recvbuf,
                              size_t count,
                              brigade_dtype_t dtype,
                              int peer,
                              brigade_comm_t comm,
                              brigade_work_t *work);

// Receive the next message of whichever other rank has one: at most `count` elements, into the
// first ones of recvbuf. `source` gets who sent it, and `received`, which may be NULL, how many
// there were. No sender is passed over for ever. A message of another type, or a longer one, is
// BRIGADE_INVALID_ARGUMENT and still there. It has no form in a group or with a work.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_recv_any(void *recvbuf,
                                  size_t count,
                                  brigade_dtype_t dtype,
                                  brigade_comm_t comm,
                                  int *source,
                                  size_t *received);

// ==== Groups of calls

// Begin a group: from here to brigade_group_end this thread's calls are only listed. Groups may
// lie within groups; the outermost one counts.
//
// Threads: each thread has its own groups.
brigade_result_t brigade_group_start(void);

// Carry out the calls of the group. Of each communicator first its collectives, in their order,
// and then its messages, all at once; different communicators at the same time. With `work` NULL
// it returns when all are done; else `work` is one handle for all of them. Calls on memory of
// devices come first and are only enqueued; a group that has some has no work. If a call in the
// group failed when it was listed, or one on memory of the host makes no sense by itself, none is
// carried out. A child that was forked inside a group can only end it: its calls are the parent's.
//
// Buffers of messages of one communicator in a group lie apart, but for those that are only sent:
// else nothing of it is carried out.
//
// Threads: each thread has its own groups.
brigade_result_t brigade_group_end(brigade_work_t *work);

// Forget the calls of the innermost group that this thread has open, and end it: for whoever
// cannot go on listing, as in a handler of exceptions. Of a group around it nothing is carried out
// either. Without an open group it does nothing.
//
// Threads: each thread has its own groups.
brigade_result_t brigade_group_cancel(void);

// ==== Interrupts

// Have the calls that this thread makes from now on ask `interrupt`, some 50 times a second while
// they wait for other ranks and nothing moves; NULL asks nobody. For interpreters, which handle
// signals between calls only. Once it says so, the call ends, and with it the world, as by
// brigade_comm_abort: BRIGADE_ABORTED on all ranks, with this rank's number. Finding the others,
// with which a world and what is left of one begin, and waiting for works ask nobody: both take a
// limit.
//
// Threads: each thread has its own.
brigade_result_t brigade_interrupt_by(brigade_interrupt_t interrupt,
                                      void *user);

// ==== Memory for buffers

// Allocate `bytes` bytes of zeros that begin on a page, as transports like their buffers best; any
// other memory will do as well, and none has to be registered: what devices need to know of it
// they are told when a call first uses it. `memory` is NULL after an error, and for no bytes.
//
// Threads: from any thread, at any time.
brigade_result_t brigade_mem_alloc(void **memory,
                                   size_t bytes);

// Free what brigade_mem_alloc allocated, once no call uses it any more. NULL is nothing.
//
// Threads: from any thread, at any time.
brigade_result_t brigade_mem_free(void *memory);

// ==== Windows

// Expose `bytes` bytes of zeros and `signals` counters, zero at first, to the other ranks, and get
// hold of theirs. Every rank must call it, each with sizes of its own. The memory belongs to the
// library: brigade_window_put and brigade_window_get reach it, the own rank's too. `window` is
// NULL after an error; if one rank cannot, for want of memory say, all of them get
// BRIGADE_INVALID_ARGUMENT and nothing has changed. Ranks reach each other's memory by themselves
// over shared memory and RDMA; over all else, and between hosts, a thread of the owner carries out
// what they ask, with the same promises.
//
// Threads: from any thread; calls on one communicator are carried out one after the other.
brigade_result_t brigade_window_create(brigade_window_t *window,
                                       size_t bytes,
                                       size_t signals,
                                       brigade_comm_t comm);

// Write `length` bytes into the window of rank `rank`, from byte `offset` on. Returns when `data`
// may be used again, which may be before it has arrived: a signal afterwards tells the owner.
//
// Threads: from any thread; those who write to one place in no order leave some bytes of each.
brigade_result_t brigade_window_put(const void *data,
                                    size_t length,
                                    int rank,
                                    size_t offset,
                                    brigade_window_t window);

// Read `length` bytes of the window of rank `rank`, from byte `offset` on, after what this rank
// has put there.
//
// Threads: from any thread.
brigade_result_t brigade_window_get(void *data,
                                    size_t length,
                                    int rank,
                                    size_t offset,
                                    brigade_window_t window);

// Add to counter `signal` of rank `rank`. Whoever sees the sum there sees all that this rank put
// into that window before.
//
// Threads: from any thread.
brigade_result_t brigade_window_signal(int rank,
                                       size_t signal,
                                       uint64_t add,
                                       brigade_window_t window);

// Wait until counter `signal` of this rank is at least `at_least`, for at most `timeout_ms`, or
// for as long as calls may stand still if that is negative (BRIGADE_TIMEOUT_MS, which ends the
// world). `value`, which may be NULL, gets what the counter is. BRIGADE_IN_PROGRESS if it is less.
//
// Threads: from any thread, also from several at once.
brigade_result_t brigade_window_wait(size_t signal,
                                     uint64_t at_least,
                                     int64_t timeout_ms,
                                     uint64_t *value,
                                     brigade_window_t window);

// How much rank `rank` exposes; `bytes` and `signals` may be NULL.
//
// Threads: from any thread.
brigade_result_t brigade_window_size(int rank,
                                     size_t *bytes,
                                     size_t *signals,
                                     brigade_window_t window);

// End a handle, and with it this rank's window: call it when no rank uses that any more, after a
// barrier say. It may outlive the communicator.
//
// Threads: from any thread; if another one waits for a signal, the rest ends with that.
brigade_result_t brigade_window_destroy(brigade_window_t window);

// ==== Devices

// Open the devices of a communicator's ranks to each other: every rank calls it, with the number
// of its device as CUDA counts them, or BRIGADE_CURRENT_DEVICE. Several ranks may be on one
// device. The first time it compiles kernels. `group` is NULL after an error; where a rank has no
// device, that is BRIGADE_INVALID_USAGE on the others, and the communicator stays as it was. A
// driver is opened by this function, or by the program, or not at all.
//
// Threads: from any thread; several ranks of one process need as many threads.
brigade_result_t brigade_device_group_create(brigade_device_group_t *group,
                                             int device,
                                             brigade_comm_t comm);

// The same where calls of `groups` groups, this one among them, may be on the rank's device at
// once: a call that waits for other ranks takes an equal part of the device then, so that all fit.
// There must be one order of all calls, of whichever groups, in which each rank makes its own.
// Ranks may say different numbers. One below 1 is BRIGADE_INVALID_ARGUMENT, and
// BRIGADE_INVALID_USAGE on the others.
//
// Threads: as brigade_device_group_create.
brigade_result_t brigade_device_group_create_among(brigade_device_group_t *group,
                                                   int device,
                                                   int groups,
                                                   brigade_comm_t comm);

// Tell what a group on devices is.
//
// Threads: from any thread.
brigade_result_t brigade_device_group_info(brigade_device_group_t group,
                                           brigade_device_info_t *info);

// Why nothing can be called any more, if it is so: for those whose calls run in graphs, or who
// wait for streams by CUDA's own functions. BRIGADE_SUCCESS as long as all is well.
//
// Threads: from any thread, at any time.
brigade_result_t brigade_device_group_check(brigade_device_group_t group);

// End a group on all ranks: wait for the calls that were enqueued, and until no other process has
// memory of this one open any more, for as long as a call may take. Nothing can be called
// afterwards, and what lies in graphs must not be launched; the handle stays. Every rank calls it,
// where ranks are processes that share a machine; of those of one process only the last one waits
// for other processes, so one thread may do it for several. BRIGADE_TIMEOUT names the ranks that
// did not come, and what they may have open is kept until the process ends.
//
// Threads: from any thread.
brigade_result_t brigade_device_group_close(brigade_device_group_t group);

// End a handle. What was enqueued is waited for; what lies in graphs must not be launched any
// more. Where brigade_device_group_close was not called, and ranks of other processes have not
// destroyed theirs after two seconds, what they may have open is kept until the process ends. It
// may outlive the handle of its communicator. Works of the group keep it until they are freed.
//
// Threads: from any thread; if another one is inside a call, the rest ends with that call.
brigade_result_t brigade_device_group_destroy(brigade_device_group_t group);

// A work for what `stream` has by now: brigade_work_test and brigade_work_wait tell its end, and
// whether it went well; brigade_work_on_done and brigade_work_fd have nothing for it, since CUDA's
// own functions do that (cudaLaunchHostFunc, events).
//
// Threads: from any thread.
brigade_result_t brigade_device_mark(brigade_device_group_t group,
                                     void *stream,
                                     brigade_work_t *work);

// brigade_send from memory of a device, in the order of a stream. Messages that ranks send to each
// other, and those to the own rank, need a group around them.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_send(const void *sendbuf,
                                     size_t count,
                                     brigade_dtype_t dtype,
                                     int peer,
                                     brigade_device_group_t group,
                                     void *stream);

// brigade_recv into memory of a device, in the order of a stream.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_recv(void *recvbuf,
                                     size_t count,
                                     brigade_dtype_t dtype,
                                     int peer,
                                     brigade_device_group_t group,
                                     void *stream);

// ==== Collectives on devices

// brigade_all_reduce on memory of devices, in the order of a stream.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_all_reduce(const void *sendbuf,
                                           void *recvbuf,
                                           size_t count,
                                           brigade_dtype_t dtype,
                                           brigade_op_t op,
                                           brigade_device_group_t group,
                                           void *stream);

// brigade_reduce_scatter on memory of devices, in the order of a stream.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_reduce_scatter(const void *sendbuf,
                                               void *recvbuf,
                                               size_t recvcount,
                                               brigade_dtype_t dtype,
                                               brigade_op_t op,
                                               brigade_device_group_t group,
                                               void *stream);

// brigade_reduce_scatter_v on memory of devices, in the order of a stream.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_reduce_scatter_v(const void *sendbuf,
                                                 void *recvbuf,
                                                 const size_t *recvcounts,
                                                 brigade_dtype_t dtype,
                                                 brigade_op_t op,
                                                 brigade_device_group_t group,
                                                 void *stream);

// brigade_all_gather on memory of devices, in the order of a stream.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_all_gather(const void *sendbuf,
                                           void *recvbuf,
                                           size_t sendcount,
                                           brigade_dtype_t dtype,
                                           brigade_device_group_t group,
                                           void *stream);

// brigade_all_gather_v on memory of devices, in the order of a stream.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_all_gather_v(const void *sendbuf,
                                             void *recvbuf,
                                             const size_t *sendcounts,
                                             brigade_dtype_t dtype,
                                             brigade_device_group_t group,
                                             void *stream);

// brigade_all_to_all on memory of devices, in the order of a stream.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_all_to_all(const void *sendbuf,
                                           void *recvbuf,
                                           size_t count,
                                           brigade_dtype_t dtype,
                                           brigade_device_group_t group,
                                           void *stream);

// brigade_all_to_all_v on memory of devices, in the order of a stream.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_all_to_all_v(const void *sendbuf,
                                             const size_t *sendcounts,
                                             void *recvbuf,
                                             const size_t *recvcounts,
                                             brigade_dtype_t dtype,
                                             brigade_device_group_t group,
                                             void *stream);

// What comes behind it in `stream` waits until the streams of all ranks have come here; the host
// waits for nobody, but where brigade_way_t says so.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_barrier(brigade_device_group_t group,
                                        void *stream);

// brigade_broadcast on memory of devices, in the order of a stream.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_broadcast(const void *sendbuf,
                                          void *recvbuf,
                                          size_t count,
                                          brigade_dtype_t dtype,
                                          int root,
                                          brigade_device_group_t group,
                                          void *stream);

// brigade_reduce on memory of devices, in the order of a stream.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_reduce(const void *sendbuf,
                                       void *recvbuf,
                                       size_t count,
                                       brigade_dtype_t dtype,
                                       brigade_op_t op,
                                       int root,
                                       brigade_device_group_t group,
                                       void *stream);

// brigade_gather on memory of devices, in the order of a stream.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_gather(const void *sendbuf,
                                       void *recvbuf,
                                       size_t sendcount,
                                       brigade_dtype_t dtype,
                                       int root,
                                       brigade_device_group_t group,
                                       void *stream);

// brigade_gather_v on memory of devices, in the order of a stream.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_gather_v(const void *sendbuf,
                                         void *recvbuf,
                                         const size_t *sendcounts,
                                         brigade_dtype_t dtype,
                                         int root,
                                         brigade_device_group_t group,
                                         void *stream);

// brigade_scatter on memory of devices, in the order of a stream.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_scatter(const void *sendbuf,
                                        void *recvbuf,
                                        size_t recvcount,
                                        brigade_dtype_t dtype,
                                        int root,
                                        brigade_device_group_t group,
                                        void *stream);

// brigade_scatter_v on memory of devices, in the order of a stream.
//
// Threads: from any thread; calls on one group come one after the other.
brigade_result_t brigade_device_scatter_v(const void *sendbuf,
                                          void *recvbuf,
                                          const size_t *recvcounts,
                                          brigade_dtype_t dtype,
                                          int root,
                                          brigade_device_group_t group,
                                          void *stream);

// ==== Offloading: memory with a budget

// Take `bytes` bytes of memory, all of them now, on the best pages the machine has. A forked child
// has none of it, and must not touch it. `arena` is NULL after an error.
//
// Threads: from any thread.
brigade_result_t brigade_arena_create(brigade_arena_t *arena,
                                      size_t bytes);

// How many bytes nobody uses now.
//
// Threads: from any thread.
brigade_result_t brigade_arena_free_bytes(brigade_arena_t arena,
                                          size_t *bytes);

// End a handle. The memory goes back to the system with the last store and optimizer that uses it.
//
// Threads: from any thread.
brigade_result_t brigade_arena_destroy(brigade_arena_t arena);

// ==== Offloading: tensors in two tiers

// A new store of these tensors, all zeros, in one file for each path; what was there is gone, but
// for an error because one of the paths or the room for all is not to be had. At most
// `memory_bytes` of the arena hold tensors. Room for two generations of everything is taken now,
// so that a full device shows here. `store` is NULL after an error.
//
// Threads: from any thread.
brigade_result_t brigade_store_create(brigade_store_t *store,
                                      brigade_arena_t arena,
                                      const char *const *paths,
                                      size_t path_count,
                                      const brigade_tensor_t *tensors,
                                      size_t tensor_count,
                                      size_t memory_bytes);

// The store that was committed to these paths, all of those it was made with, as of its last
// commit. `store` is NULL after an error.
//
// Threads: from any thread.
brigade_result_t brigade_store_open(brigade_store_t *store,
                                    brigade_arena_t arena,
                                    const char *const *paths,
                                    size_t path_count,
                                    size_t memory_bytes);

// Say in which order tensors will be used, over and over: from now on what is needed next is
// fetched while the caller computes. Uses out of that order are right too, only later.
//
// Threads: from any thread; calls on one store come one after the other.
brigade_result_t brigade_store_expect(brigade_store_t store,
                                      const char *const *names,
                                      size_t count);

// Start to bring a tensor into memory. Waits only where room has to be made for it.
//
// Threads: from any thread; calls on one store come one after the other.
brigade_result_t brigade_store_prefetch(brigade_store_t store,
                                        const char *name);

// Have a tensor in memory: `data` gets where it is, good until brigade_store_give_back, and
// `bytes`, which may be NULL, how long it is. It begins at a multiple of 4096 bytes.
//
// Threads: from any thread; calls on one store come one after the other.
brigade_result_t brigade_store_borrow(brigade_store_t store,
                                      const char *name,
                                      void **data,
                                      size_t *bytes);

// Give a borrowed tensor back.
//
// Threads: from any thread; calls on one store come one after the other.
brigade_result_t brigade_store_give_back(brigade_store_t store,
                                         const char *name,
                                         brigade_returned_t how);

// Copy all of a tensor, `bytes` bytes, into the store, and start to bring it to the files: what
// swapping out is.
//
// Threads: from any thread; calls on one store come one after the other.
brigade_result_t brigade_store_put(brigade_store_t store,
                                   const char *name,
                                   const void *data,
                                   size_t bytes);

// Copy all of a tensor, `bytes` bytes, out of the store, after waiting for it.
//
// Threads: from any thread; calls on one store come one after the other.
brigade_result_t brigade_store_get(brigade_store_t store,
                                   const char *name,
                                   void *data,
                                   size_t bytes);

// Make all tensors survive a loss of power as they are, as one generation; `label` is kept with
// it, such as the number of a training step. No tensor may be borrowed. If it fails, the store is
// back at the last commit, in memory as in the files (in these once they can be written).
//
// Threads: from any thread; calls on one store come one after the other.
brigade_result_t brigade_store_commit(brigade_store_t store,
                                      uint64_t label);

// The last commit: its number, from 1 on, and the label that it was given; both 0 where nothing
// was committed yet, and both may be NULL.
//
// Threads: from any thread; calls on one store come one after the other.
brigade_result_t brigade_store_last(brigade_store_t store,
                                    uint64_t *number,
                                    uint64_t *label);

// End a handle, and with it borrowed memory. What was not committed is forgotten.
//
// Threads: from any thread.
brigade_result_t brigade_store_destroy(brigade_store_t store);

// ==== Offloading: AdamW

// A new state in files, one for each path, over which it is striped; what was there is gone, but
// for an error because memory, room or one of the paths is not to be had. It begins with these
// weights and moments of zero. `config` may be NULL. Takes five chunks of the arena, of at most
// 3 MiB each. `adamw` is NULL after an error.
//
// Threads: from any thread.
brigade_result_t brigade_adamw_create(brigade_adamw_t *adamw,
                                      brigade_arena_t arena,
                                      const char *const *paths,
                                      size_t path_count,
                                      const float *weights,
                                      size_t count,
                                      const brigade_adamw_config_t *config);

// The state that was left in these files, after the last step that came to its end. `config` may
// be NULL. `adamw` is NULL after an error.
//
// Threads: from any thread.
brigade_result_t brigade_adamw_open(brigade_adamw_t *adamw,
                                    brigade_arena_t arena,
                                    const char *const *paths,
                                    size_t path_count,
                                    const brigade_adamw_config_t *config);

// One step: `gradients`, as many as there are weights, of float32, float16 or bfloat16, each
// multiplied by `scale` first. `copy`, which may be NULL, gets all new weights as `copy_dtype`
// (float32, float16, bfloat16), and must not overlap `gradients`. Chunks are read, updated and
// written, all three at a time; then the whole survives a loss of power. If it fails, the state is
// as it was before the step, and `copy` may have some of what would have been.
//
// Threads: from any thread; calls on one optimizer come one after the other.
brigade_result_t brigade_adamw_step(brigade_adamw_t adamw,
                                    const void *gradients,
                                    brigade_dtype_t gradient_dtype,
                                    void *copy,
                                    brigade_dtype_t copy_dtype,
                                    float lr,
                                    float scale);

// Read the weights, `count` of them, as many as there are.
//
// Threads: from any thread; calls on one optimizer come one after the other.
brigade_result_t brigade_adamw_weights(brigade_adamw_t adamw,
                                       float *weights,
                                       size_t count);

// How many weights there are, and how many steps they have seen; both may be NULL.
//
// Threads: from any thread; calls on one optimizer come one after the other.
brigade_result_t brigade_adamw_size(brigade_adamw_t adamw,
                                    size_t *count,
                                    uint64_t *steps);

// End a handle. The files stay.
//
// Threads: from any thread.
brigade_result_t brigade_adamw_destroy(brigade_adamw_t adamw);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BRIGADE_H */
