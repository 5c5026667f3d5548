# Templates compute with pow, fmod and nearbyint; whoever links mx_text needs them behind it.
target_link_libraries(mx_text PUBLIC m)
