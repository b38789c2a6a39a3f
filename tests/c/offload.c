/*
 * Offloading: tensors that are swapped to files and back, a streamed AdamW step beside the same
 * step in memory, and what happens when a file is damaged or a device full. Files go to the folder
 * that the first argument names; with the second, "full", that folder has no room.
 */
#include "check.h"

#include <math.h>
#include <string.h>

#define MIB (1u << 20)
#define TENSORS 6
#define TENSOR_BYTES (2 * MIB)
#define WEIGHTS 300001

static char path[512];
static const char *const paths[] = {path};
static float weights[WEIGHTS], mean[WEIGHTS], square[WEIGHTS], gradients[WEIGHTS], got[WEIGHTS];

static void in_folder(const char *folder, const char *name) {
    REQUIRE(snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path);
}

static unsigned char value(int tensor, int round, size_t at) {
    return (unsigned char)(at * 5 + (size_t)tensor * 17 + (size_t)round * 29);
}

/* Memory holds two of six tensors; the rest goes out and comes back. */
static void swap(brigade_arena_t arena) {
    static unsigned char data[TENSOR_BYTES];
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f"};
    brigade_tensor_t tensors[TENSORS];
    brigade_store_t store;
    unsigned char *borrowed;
    size_t at, bytes;
    uint64_t number, label;
    int tensor, round;
    for (tensor = 0; tensor < TENSORS; tensor++) {
        tensors[tensor].name = names[tensor];
        tensors[tensor].dtype = BRIGADE_UINT8;
        tensors[tensor].count = TENSOR_BYTES;
    }
    CHECK(brigade_store_create(&store, arena, paths, 1, tensors, TENSORS, 2 * TENSOR_BYTES));
    for (tensor = 0; tensor < TENSORS; tensor++) {
        for (at = 0; at < TENSOR_BYTES; at++)
            data[at] = value(tensor, 0, at);
        CHECK(brigade_store_put(store, names[tensor], data, TENSOR_BYTES));
    }
    CHECK(brigade_store_last(store, &number, &label));
    REQUIRE(number == 0 && label == 0);
    CHECK(brigade_store_expect(store, names, TENSORS));
    for (round = 1; round <= 2; round++) {
        for (tensor = 0; tensor < TENSORS; tensor++) {
            CHECK(brigade_store_borrow(store, names[tensor], (void **)&borrowed, &bytes));
            REQUIRE(bytes == TENSOR_BYTES && (uintptr_t)borrowed % 4096 == 0);
            for (at = 0; at < TENSOR_BYTES; at++) {
                REQUIRE(borrowed[at] == value(tensor, round - 1, at));
                borrowed[at] = value(tensor, round, at);
            }
            CHECK(brigade_store_prefetch(store, names[(tensor + 1) % TENSORS]));
            CHECK(brigade_store_give_back(store, names[tensor],
                                          tensor % 2 ? BRIGADE_CHANGED : BRIGADE_OUT));
        }
    }
    CHECK(brigade_store_commit(store, 2));
    CHECK(brigade_store_destroy(store));
    /* All of it is there when the store is opened again; what is not committed is not. */
    CHECK(brigade_store_open(&store, arena, paths, 1, 2 * TENSOR_BYTES));
    CHECK(brigade_store_last(store, &number, &label));
    REQUIRE(number == 1 && label == 2);
    CHECK(brigade_store_get(store, "c", data, TENSOR_BYTES));
    for (at = 0; at < TENSOR_BYTES; at++)
        REQUIRE(data[at] == value(2, 2, at));
    memset(data, 0, sizeof data);
    CHECK(brigade_store_put(store, "c", data, TENSOR_BYTES));
    CHECK(brigade_store_destroy(store));
    CHECK(brigade_store_open(&store, arena, paths, 1, 2 * TENSOR_BYTES));
    CHECK(brigade_store_get(store, "c", data, TENSOR_BYTES));
    REQUIRE(data[1] == value(2, 2, 1));
    CHECK(brigade_store_destroy(store));
}

/* The step as books have it, in double precision. */
static void step(int number, float lr, float scale) {
    const double rate = 1 - pow(0.9f, number), root = sqrt(1 - pow(0.999f, number));
    int at;
    for (at = 0; at < WEIGHTS; at++) {
        const double g = (double)gradients[at] * scale;
        mean[at] = (float)(0.9f * (double)mean[at] + (1 - (double)0.9f) * g);
        square[at] = (float)(0.999f * (double)square[at] + (1 - (double)0.999f) * g * g);
        weights[at] = (float)(weights[at] * (1 - (double)lr * 0.01f)
                              - lr * (mean[at] / rate) / (sqrt(square[at]) / root + 1e-8));
    }
}

static void train(brigade_arena_t arena) {
    brigade_adamw_config_t config = BRIGADE_ADAMW_INIT;
    brigade_arena_t small;
    brigade_adamw_t adamw;
    size_t count;
    uint64_t steps;
    int number, at;
    config.threads = 2;
    for (at = 0; at < WEIGHTS; at++)
        weights[at] = (float)(at % 1000) / 500 - 1;
    CHECK(brigade_adamw_create(&adamw, arena, paths, 1, weights, WEIGHTS, &config));
    for (number = 1; number <= 4; number++) {
        for (at = 0; at < WEIGHTS; at++)
            gradients[at] = (float)((at * 31 + number * 17) % 200 - 100);
        step(number, 0.01f, 0.125f);
        CHECK(brigade_adamw_step(adamw, gradients, BRIGADE_FLOAT32, got, BRIGADE_FLOAT32, 0.01f,
                                 0.125f));
        for (at = 0; at < WEIGHTS; at++)
            REQUIRE(fabs(got[at] - weights[at]) < 1e-5);
        if (number == 2) {
            /* As after a crash: the state is in the files. */
            CHECK(brigade_adamw_destroy(adamw));
            CHECK(brigade_adamw_open(&adamw, arena, paths, 1, &config));
        }
    }
    CHECK(brigade_adamw_size(adamw, &count, &steps));
    REQUIRE(count == WEIGHTS && steps == 4);
    memcpy(gradients, got, sizeof got);
    CHECK(brigade_adamw_weights(adamw, got, WEIGHTS));
    REQUIRE(memcmp(gradients, got, sizeof got) == 0);
    CHECK(brigade_adamw_destroy(adamw));
    /* Without the memory for a new one the old one is as it was. */
    CHECK(brigade_arena_create(&small, 64 << 10));
    RESULT(BRIGADE_OVER_BUDGET,
           brigade_adamw_create(&adamw, small, paths, 1, weights, WEIGHTS, &config));
    CHECK(brigade_arena_destroy(small));
    CHECK(brigade_adamw_open(&adamw, arena, paths, 1, &config));
    CHECK(brigade_adamw_size(adamw, &count, &steps));
    REQUIRE(count == WEIGHTS && steps == 4);
    CHECK(brigade_adamw_destroy(adamw));
}

/* One bit in every block is turned: whoever reads them is told, and gets nothing wrong. */
static void flip(brigade_arena_t arena) {
    brigade_adamw_t adamw;
    FILE *file = fopen(path, "r+b");
    long at, end;
    int byte;
    REQUIRE(file != NULL && fseek(file, 0, SEEK_END) == 0);
    end = ftell(file);
    /* The head of the file says which generation is whole, and stays. */
    for (at = 256 << 10; at < end; at += 4096) {
        REQUIRE(fseek(file, at, SEEK_SET) == 0 && (byte = fgetc(file)) != EOF);
        REQUIRE(fseek(file, at, SEEK_SET) == 0 && fputc(byte ^ 4, file) != EOF);
    }
    REQUIRE(fclose(file) == 0);
    /* Either no generation is whole, or its blocks are not. */
    if (brigade_adamw_open(&adamw, arena, paths, 1, NULL) == BRIGADE_SUCCESS) {
        RESULT(BRIGADE_CORRUPT, brigade_adamw_weights(adamw, got, WEIGHTS));
        REQUIRE(strstr(brigade_last_error(), path) != NULL);
        RESULT(BRIGADE_CORRUPT, brigade_adamw_step(adamw, gradients, BRIGADE_FLOAT32, NULL,
                                                   BRIGADE_FLOAT32, 0.1f, 1.0f));
        CHECK(brigade_adamw_destroy(adamw));
    } else {
        REQUIRE(strstr(brigade_last_error(), path) != NULL);
    }
}

static void nonsense(brigade_arena_t arena) {
    const brigade_tensor_t twice[] = {{"a", BRIGADE_INT8, 5}, {"a", BRIGADE_INT8, 5}};
    const brigade_tensor_t alike[] = {{"a", BRIGADE_INT8, 5}, {"a", BRIGADE_INT32, 7}};
    const brigade_tensor_t integers[] = {
        {"weights", BRIGADE_INT32, 5}, {"mean", BRIGADE_INT32, 5}, {"square", BRIGADE_INT32, 5}};
    const brigade_tensor_t nameless = {NULL, BRIGADE_INT8, 5};
    const brigade_tensor_t untyped = {"a", (brigade_dtype_t)99, 5};
    const brigade_tensor_t endless = {"a", BRIGADE_INT64, SIZE_MAX};
    const char *const nowhere[] = {"/nonexistent/folder/file"}, *const null[] = {NULL};
    brigade_adamw_config_t config = BRIGADE_ADAMW_INIT;
    brigade_arena_t other;
    brigade_store_t store;
    brigade_adamw_t adamw;
    void *data;
    RESULT(BRIGADE_OVER_BUDGET, brigade_arena_create(&other, 1));
    RESULT(BRIGADE_OVER_BUDGET, brigade_arena_create(&other, SIZE_MAX));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_arena_create(NULL, MIB));
    RESULT(BRIGADE_INVALID_ARGUMENT,
           brigade_store_open(&store, (brigade_arena_t)&arena, paths, 1, 0));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_store_open(&store, arena, paths, 0, 0));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_store_open(&store, arena, null, 1, 0));
    RESULT(BRIGADE_SYSTEM_ERROR, brigade_store_open(&store, arena, nowhere, 1, 0));
    REQUIRE(store == NULL);
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_store_create(&store, arena, paths, 1, twice, 2, MIB));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_store_create(&store, arena, paths, 1, alike, 2, MIB));
    REQUIRE(strstr(brigade_last_error(), "two tensors are called \"a\"") != NULL);
    RESULT(BRIGADE_INVALID_ARGUMENT,
           brigade_store_create(&store, arena, paths, 1, &nameless, 1, MIB));
    RESULT(BRIGADE_INVALID_ARGUMENT,
           brigade_store_create(&store, arena, paths, 1, &untyped, 1, MIB));
    RESULT(BRIGADE_INVALID_ARGUMENT,
           brigade_store_create(&store, arena, paths, 1, &endless, 1, MIB));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_store_create(&store, arena, paths, 1, twice, 1, 4095));
    REQUIRE(strstr(brigade_last_error(), "takes 4096 bytes of memory") != NULL);
    CHECK(brigade_store_create(&store, arena, paths, 1, twice, 1, MIB));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_store_borrow(store, "b", &data, NULL));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_store_borrow(store, NULL, &data, NULL));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_store_put(store, "a", "12345", 4));
    RESULT(BRIGADE_INVALID_USAGE, brigade_store_give_back(store, "a", BRIGADE_CHANGED));
    CHECK(brigade_store_borrow(store, "a", &data, NULL));
    RESULT(BRIGADE_INVALID_USAGE, brigade_store_borrow(store, "a", &data, NULL));
    RESULT(BRIGADE_INVALID_USAGE, brigade_store_commit(store, 1));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_store_give_back(store, "a", (brigade_returned_t)3));
    CHECK(brigade_store_give_back(store, "a", BRIGADE_UNCHANGED));
    CHECK(brigade_store_commit(store, 1));
    CHECK(brigade_store_destroy(store));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_store_destroy(store));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_adamw_open(&adamw, arena, paths, 1, NULL));
    CHECK(brigade_store_create(&store, arena, paths, 1, integers, 3, MIB));
    CHECK(brigade_store_commit(store, 1));
    CHECK(brigade_store_destroy(store));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_adamw_open(&adamw, arena, paths, 1, NULL));
    config.beta1 = 1;
    RESULT(BRIGADE_INVALID_ARGUMENT,
           brigade_adamw_create(&adamw, arena, paths, 1, weights, 5, &config));
    config.struct_size = 3;
    RESULT(BRIGADE_INVALID_ARGUMENT,
           brigade_adamw_create(&adamw, arena, paths, 1, weights, 5, &config));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_adamw_create(&adamw, arena, paths, 1, NULL, 5, NULL));
    CHECK(brigade_adamw_create(&adamw, arena, paths, 1, weights, 5, NULL));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_adamw_weights(adamw, got, 4));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_adamw_step(adamw, gradients, BRIGADE_INT8, NULL,
                                                        BRIGADE_INT8, 0.1f, 1.0f));
    RESULT(BRIGADE_INVALID_ARGUMENT, brigade_adamw_step(adamw, gradients, BRIGADE_FLOAT32, NULL,
                                                        BRIGADE_FLOAT32, (float)NAN, 1.0f));
    /* The last byte of what is read is the first of what would be written. */
    RESULT(BRIGADE_INVALID_ARGUMENT,
           brigade_adamw_step(adamw, gradients, BRIGADE_FLOAT32, (char *)gradients + 19,
                              BRIGADE_FLOAT16, 0.1f, 1.0f));
    REQUIRE(strstr(brigade_last_error(), "overlap") != NULL);
    CHECK(brigade_adamw_step(adamw, gradients, BRIGADE_FLOAT32, (char *)gradients + 20,
                             BRIGADE_FLOAT16, 0.1f, 1.0f));
    CHECK(brigade_adamw_destroy(adamw));
}

int main(int count, char **arguments) {
    brigade_arena_t arena;
    size_t before, after;
    REQUIRE(count > 1);
    CHECK(brigade_arena_create(&arena, 32 * MIB));
    CHECK(brigade_arena_free_bytes(arena, &before));
    if (count > 2 && strcmp(arguments[2], "full") == 0) {
        brigade_adamw_t adamw;
        in_folder(arguments[1], "full");
        RESULT(BRIGADE_SYSTEM_ERROR,
               brigade_adamw_create(&adamw, arena, paths, 1, weights, WEIGHTS, NULL));
        REQUIRE(strstr(brigade_last_error(), path) != NULL && adamw == NULL);
    } else {
        in_folder(arguments[1], "store");
        swap(arena);
        in_folder(arguments[1], "adamw");
        train(arena);
        flip(arena);
        in_folder(arguments[1], "nonsense");
        nonsense(arena);
    }
    /* Whatever was used came back. */
    CHECK(brigade_arena_free_bytes(arena, &after));
    REQUIRE(before == after);
    CHECK(brigade_arena_destroy(arena));
    printf("offloaded as it should be\n");
    return 0;
}
