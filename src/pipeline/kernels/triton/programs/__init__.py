"""Programs in Triton, one file each; all matrices lie row by row: element (i, j) of A is at A + i * lda + j."""
