# exp2 and log2 of the eviction order.
target_link_libraries(mx_bank PUBLIC m)
