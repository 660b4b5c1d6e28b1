/* Opens each library named on the command line as an application would, and prints one line for
 * it: the name and the file that was loaded, or the loader's error. Fails if one can't be opened. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	int failed = 0;

	for (int i = 1; i < argc; i++) {
		void *library = dlopen(argv[i], RTLD_NOW);
		struct link_map *map;

		if (library == NULL || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) {
			printf("%s error: %s\n", argv[i], dlerror());
			failed = 1;
		} else {
			printf("%s %s\n", argv[i], map->l_name);
		}
	}
	return failed;
}
