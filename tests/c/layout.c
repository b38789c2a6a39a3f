/*
 * The binary interface in numbers. Programs that are compiled today must run with the libraries of
 * tomorrow: what stands here never changes, and new members come behind. ffi/src says the same
 * numbers to Rust's compiler.
 */
#include <brigade.h>

#include <stddef.h>

#define SAME(name, expression, value) typedef char name[(expression) == (value) ? 1 : -1]

SAME(unique_id_size, sizeof(brigade_unique_id_t), 128);
SAME(setting_size, sizeof(brigade_setting_t), 16);
SAME(setting_name_at, offsetof(brigade_setting_t, name), 0);
SAME(setting_value_at, offsetof(brigade_setting_t, value), 8);
SAME(config_size, sizeof(brigade_config_t), 24);
SAME(config_size_at, offsetof(brigade_config_t, struct_size), 0);
SAME(config_settings_at, offsetof(brigade_config_t, settings), 8);
SAME(config_count_at, offsetof(brigade_config_t, setting_count), 16);
SAME(stats_size, sizeof(brigade_stats_t), 24);
SAME(stats_size_at, offsetof(brigade_stats_t, struct_size), 0);
SAME(stats_sent_at, offsetof(brigade_stats_t, sent_bytes), 8);
SAME(stats_calls_at, offsetof(brigade_stats_t, calls), 16);
SAME(tensor_size, sizeof(brigade_tensor_t), 24);
SAME(tensor_name_at, offsetof(brigade_tensor_t, name), 0);
SAME(tensor_dtype_at, offsetof(brigade_tensor_t, dtype), 8);
SAME(tensor_count_at, offsetof(brigade_tensor_t, count), 16);
SAME(adamw_config_size, sizeof(brigade_adamw_config_t), 32);
SAME(adamw_beta1_at, offsetof(brigade_adamw_config_t, beta1), 8);
SAME(adamw_beta2_at, offsetof(brigade_adamw_config_t, beta2), 12);
SAME(adamw_eps_at, offsetof(brigade_adamw_config_t, eps), 16);
SAME(adamw_decay_at, offsetof(brigade_adamw_config_t, decay), 20);
SAME(adamw_threads_at, offsetof(brigade_adamw_config_t, threads), 24);
SAME(device_info_size, sizeof(brigade_device_info_t), 24);
SAME(device_info_device_at, offsetof(brigade_device_info_t, device), 8);
SAME(device_info_way_at, offsetof(brigade_device_info_t, way), 12);
SAME(device_info_captures_at, offsetof(brigade_device_info_t, captures), 16);
SAME(device_info_shares_at, offsetof(brigade_device_info_t, shares_device), 20);
SAME(device_group_size, sizeof(brigade_device_group_t), 8);
SAME(way_size, sizeof(brigade_way_t), 4);
SAME(way_last, BRIGADE_WAY_BY_NODES, 4);
SAME(current_device, BRIGADE_CURRENT_DEVICE, -1);
SAME(comm_size, sizeof(brigade_comm_t), 8);
SAME(window_size, sizeof(brigade_window_t), 8);
SAME(arena_size, sizeof(brigade_arena_t), 8);
SAME(store_size, sizeof(brigade_store_t), 8);
SAME(adamw_size, sizeof(brigade_adamw_t), 8);
SAME(work_size, sizeof(brigade_work_t), 8);
SAME(op_size, sizeof(brigade_op_t), 8);
SAME(fold_size, sizeof(brigade_fold_t), 8);
SAME(result_size, sizeof(brigade_result_t), 4);
SAME(dtype_size, sizeof(brigade_dtype_t), 4);
SAME(result_join_failed, BRIGADE_JOIN_FAILED, 12);
SAME(result_last, BRIGADE_OVER_BUDGET, 14);
SAME(returned_last, BRIGADE_OUT, 2);
SAME(dtype_last, BRIGADE_BOOL, 13);
SAME(op_last, BRIGADE_BXOR, 7);

/* The functions, by their types. */
typedef brigade_result_t folding(const void *, void *, size_t, brigade_dtype_t, brigade_op_t,
                                 brigade_comm_t, brigade_work_t *);
typedef brigade_result_t folding_v(const void *, void *, const size_t *, brigade_dtype_t,
                                   brigade_op_t, brigade_comm_t, brigade_work_t *);
typedef brigade_result_t moving(const void *, void *, size_t, brigade_dtype_t, brigade_comm_t,
                                brigade_work_t *);
typedef brigade_result_t rooted(const void *, void *, size_t, brigade_dtype_t, int,
                                brigade_comm_t, brigade_work_t *);
typedef brigade_result_t rooted_v(const void *, void *, const size_t *, brigade_dtype_t, int,
                                  brigade_comm_t, brigade_work_t *);

typedef brigade_result_t device_folding(const void *, void *, size_t, brigade_dtype_t,
                                        brigade_op_t, brigade_device_group_t, void *);
typedef brigade_result_t device_rooted(const void *, void *, size_t, brigade_dtype_t, int,
                                       brigade_device_group_t, void *);

int main(void) {
    device_folding *const device_folds[] = {brigade_device_all_reduce,
                                            brigade_device_reduce_scatter};
    device_rooted *const device_roots[] = {brigade_device_broadcast, brigade_device_gather,
                                           brigade_device_scatter};
    folding *const folds[] = {brigade_all_reduce, brigade_reduce_scatter};
    folding_v *const folds_v[] = {brigade_reduce_scatter_v};
    moving *const moves[] = {brigade_all_gather, brigade_all_to_all};
    rooted *const roots[] = {brigade_broadcast, brigade_gather, brigade_scatter};
    rooted_v *const roots_v[] = {brigade_gather_v, brigade_scatter_v};
    brigade_result_t (*const join)(brigade_comm_t *, int, brigade_unique_id_t, int) =
        brigade_comm_init_rank;
    return device_folds[0] && device_roots[0] && folds[0] && folds_v[0] && moves[0] && roots[0] &&
                   roots_v[0] && join
               ? 0
               : 1;
}
