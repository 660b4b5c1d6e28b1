/* The soname of a shared library, read from its dynamic section without mapping it. */
#include "hook.h"

#include <elf.h>
#include <string.h>
#include <unistd.h>

#define MAX_SEGMENTS 128
#define MAX_DYNAMIC 4096

/* What ld.so.cache says of a library for glibc (0x3) of a machine (glibc, ldconfig.h). */
static const struct {
    uint16_t machine;
    uint32_t flags;
} MACHINES[] = {{EM_X86_64, 0x0303}, {EM_AARCH64, 0x0a03}};

static bool read_at(int fd, void *out, size_t size, uint64_t offset)
{
    return offset <= INT64_MAX && pread(fd, out, size, (off_t)offset) == (ssize_t)size;
}

static bool machine_flags(const Elf64_Ehdr *header, uint32_t *flags)
{
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
        header->e_ident[EI_DATA] != ELFDATA2LSB || header->e_type != ET_DYN ||
        header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phnum > MAX_SEGMENTS)
        return false;
    for (size_t i = 0; i < sizeof MACHINES / sizeof *MACHINES; i++)
        if (MACHINES[i].machine == header->e_machine) {
            *flags = MACHINES[i].flags;
            return true;
        }
    return false;
}

/* Place in the file of what the program sees at `address`. */
static bool file_offset(const Elf64_Phdr *segments, size_t count, uint64_t address,
                        uint64_t *offset)
{
    for (size_t i = 0; i < count; i++) {
        const Elf64_Phdr *load = &segments[i];
        if (load->p_type == PT_LOAD && address >= load->p_vaddr &&
            address - load->p_vaddr < load->p_filesz) {
            *offset = load->p_offset + (address - load->p_vaddr);
            return true;
        }
    }
    return false;
}

/* Address of the string table, and where in it the soname starts. */
static bool find_soname(int fd, const Elf64_Phdr *dynamic, uint64_t *table, uint64_t *name)
{
    static Elf64_Dyn entries[MAX_DYNAMIC];
    size_t count = dynamic->p_filesz / sizeof *entries;
    bool has_table = false, has_name = false;
    if (count > MAX_DYNAMIC || !read_at(fd, entries, count * sizeof *entries, dynamic->p_offset))
        return false;
    for (size_t i = 0; i < count && entries[i].d_tag != DT_NULL; i++) {
        if (entries[i].d_tag == DT_STRTAB) {
            *table = entries[i].d_un.d_ptr;
            has_table = true;
        } else if (entries[i].d_tag == DT_SONAME) {
            *name = entries[i].d_un.d_val;
            has_name = true;
        }
    }
    return has_table && has_name;
}

bool elf_soname(int fd, char *soname, size_t room, uint32_t *flags)
{
    static Elf64_Phdr segments[MAX_SEGMENTS];
    Elf64_Ehdr header;
    uint64_t table = 0, name = 0, offset = 0;
    if (!read_at(fd, &header, sizeof header, 0) || !machine_flags(&header, flags) ||
        !read_at(fd, segments, header.e_phnum * sizeof *segments, header.e_phoff))
        return false;
    const Elf64_Phdr *dynamic = NULL;
    for (size_t i = 0; i < header.e_phnum; i++)
        if (segments[i].p_type == PT_DYNAMIC)
            dynamic = &segments[i];
    if (dynamic == NULL || !find_soname(fd, dynamic, &table, &name) ||
        !file_offset(segments, header.e_phnum, table, &offset) || offset > INT32_MAX ||
        name > INT32_MAX)
        return false;
    ssize_t length = pread(fd, soname, room - 1, (off_t)(offset + name));
    if (length <= 0)
        return false;
    soname[length] = '\0';
    size_t size = strlen(soname); /* shorter than what was read: ended in the file */
    return size > 0 && size < (size_t)length && strchr(soname, '/') == NULL;
}
