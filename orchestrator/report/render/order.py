"""The columns of each table, in their order. columns.csv has those of the CSV files."""

from __future__ import annotations

ORDER = {
    name: words.split()
    for name, words in {
        "groups": """
            strategy nodes seeds lr_last_epoch epochs_trained time_to_target_s cluster_s wall_s
            wall_by_cluster speedup speedup_interval efficiency cpu_time_speedup cpu_s_per_sample_of_serial
            accuracy accuracy_interval bits_per_token dropped_choices accuracy_difference
            local_accuracy_mean consensus_distance exchange_share communicate_s hidden_s wait_s
            exchange_s_per_step bytes_sent_per_rank bytes_sent_per_rank_per_step link_latency_s
            link_bytes_per_s samples_per_s staleness_mean noise_scale_samples
        """,
        "certificates": """
            strategy nodes samples coverage overlap coverage_whole_run overlap_whole_run
            js_divergence_mean_bits js_divergence_max_bits js_divergence_whole_run_max_bits
            earth_movers_distance_mean earth_movers_distance_max verified
        """,
        "memory": """
            strategy nodes step_s bubble_share bubble_share_formula split_point_bytes_per_step_max
            parameters_per_rank_max state_bytes_per_rank_max activation_bytes_per_rank_max peak_memory_mib
            load_balance
        """,
        "containers": """
            strategy nodes container_payload_bytes_mean container_sent_bytes_mean container_sent_by_payload
            container_cpu_s_mean container_throttled_s_max container_memory_peak_mib_max
        """,
        # Beside the label, nodes and seed of a run, which failed and pending runs have, too.
        "runs": """
            time_to_target_s cluster_s wall_s speedup efficiency cpu_time_speedup accuracy
            accuracy_difference local_accuracy_mean samples_per_s bytes_sent_per_rank peak_memory_mib
            startup_s teardown_s replicas_equal
        """,
        # Those that the page shows first, the most important first. A button shows the others.
        "first": """
            workload strategy nodes block runs faults time_s_published time_s_measured accuracy_published
            accuracy_measured time_to_target_s cluster_s speedup accuracy bytes_sent_per_rank wall_s
            coverage overlap samples verified step_s state_bytes_per_rank_max activation_bytes_per_rank_max
            bubble_share extra_time accuracy_difference missing container_sent_bytes_mean
            container_cpu_s_mean container_throttled_s_max container_memory_peak_mib_max peak_memory_mib
        """,
    }.items()
}
