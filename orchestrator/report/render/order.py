"""The columns of each table and CSV file, in their order."""

from __future__ import annotations

# Programs read the CSV files: add columns at the end, and do not rename them. The keys are those of
# quantities, of fields of the sweep file, and of the other columns in `columns.py`.
ORDER = {
    name: words.split()
    for name, words in {
        # Times are on the wall clock, whichever clock is the report's, until `clock`.
        "results.csv": """
            key status cause strategy transport partitioner dataset model optimizer nodes seed lr batch_size
            epochs threads runtime cores train_s speedup efficiency work_cpu_s cpu_time_speedup baseline
            no_speedup_reason accuracy accuracy_difference test_loss bits_per_token local_accuracy_min
            local_accuracy_mean local_accuracy_max steps samples_per_s data_s compute_s communicate_s wait_s
            cpu_contention_s other_s evaluate_s coverage overlap coverage_whole_run overlap_whole_run
            js_divergence_mean_bits js_divergence_max_bits js_divergence_whole_run_max_bits
            samples_per_rank_min samples_per_rank_max certificate_verified peak_memory_mib startup_s
            teardown_s run_wall_s replicas_equal flags processes_per_node ranks cpus memory_mb pids shm_mb
            bytes_sent_per_rank containers container_sent_bytes_mean container_cpu_s_mean
            container_throttled_s_max container_memory_peak_mib_max container_memory_limit_mib image
            consensus_distance bytes_sent_per_rank_per_step link link_latency_s link_bytes_per_s
            exchange_s_per_step earth_movers_distance_mean earth_movers_distance_max staleness_mean
            staleness_max batch_per step_s parameters_per_rank_max state_bytes_per_rank_max
            activation_bytes_per_rank_max load_balance split_points bubble_share bubble_share_formula
            split_point_bytes_per_step_max augmentation node_speed straggler_rank straggler_share_of_time
            straggler_share_of_waiting lr_scaling warm_up_epochs lr_first_epoch lr_last_epoch
            target_accuracy patience target_reached time_to_target_s epochs_trained vary checkpoint_s
            checkpoint_epochs checkpoint_steps faults faults_injected byzantine on_loss restarts restarted
            elapsed_s repeated_steps samples_lost order log cpu_s_per_sample cpu_s_per_sample_of_serial loss
            rounds_to_target dropped_choices
            clock cluster_s cluster_speedup cluster_efficiency cluster_data_s cluster_compute_s
            cluster_communicate_s cluster_wait_s cluster_other_s cluster_exchange_s_per_step cluster_step_s
            cluster_bubble_share cluster_time_to_target_s cluster_straggler_rank
        """,
        "groups": """
            strategy nodes seeds lr_last_epoch epochs_trained time_to_target_s cluster_s wall_s
            wall_by_cluster speedup speedup_interval efficiency cpu_time_speedup cpu_s_per_sample_of_serial
            accuracy accuracy_interval bits_per_token dropped_choices accuracy_difference
            local_accuracy_mean consensus_distance exchange_share communicate_s wait_s exchange_s_per_step
            bytes_sent_per_rank bytes_sent_per_rank_per_step link_latency_s link_bytes_per_s samples_per_s
            staleness_mean
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
